#include "bimetal/parallel/pipeline/description.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::pipeline {
namespace {

constexpr std::int64_t kNothing = -1, kUndefined = -1;
constexpr std::int64_t kMostValues = 32, kMostDimensions = 16;
constexpr std::int64_t kLastScheme = static_cast<std::int64_t>(comm::Scheme::sign);

class Writer {
 public:
  void put(std::int64_t number) {
    if (next_ == description_.size()) {
      throw Error(ErrorCode::Unsupported,
                  "too many tensors, or too many dimensions, between two stages of a pipeline: cut "
                  "the model where less is handed on (mesh.cuts)");
    }
    description_[next_++] = number;
  }
  const Description& description() const noexcept { return description_; }

 private:
  Description description_{};
  std::size_t next_ = 0;
};

class Reader {
 public:
  explicit Reader(const Description& description) : description_(description) {}

  std::int64_t get(std::int64_t least, std::int64_t most) {
    if (next_ == description_.size() || description_[next_] < least || description_[next_] > most) {
      throw Error(ErrorCode::CorruptData,
                  "the description of activations from another stage makes no sense: do all ranks "
                  "run the same version?");
    }
    return description_[next_++];
  }

 private:
  const Description& description_;
  std::size_t next_ = 0;
};

torch::Tensor read_tensor(Reader& reader, torch::ScalarType dtype) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(reader.get(0, kMostDimensions)));
  std::int64_t left = std::int64_t{1} << 48;
  for (auto& size : sizes) {
    size = reader.get(0, left);
    left /= std::max<std::int64_t>(size, 1);
  }
  return torch::empty(sizes, torch::TensorOptions(dtype).device(torch::kMeta));
}

}  // namespace

Description describe(const task::Values& values, comm::Scheme scheme) {
  Writer writer;
  writer.put(static_cast<std::int64_t>(values.size()));
  writer.put(static_cast<std::int64_t>(scheme));
  for (const auto& value : values) {
    if (!value.defined()) {
      writer.put(kUndefined);
      continue;
    }
    comm_dtype_of(value);
    writer.put(static_cast<std::int64_t>(value.scalar_type()));
    writer.put(value.requires_grad() ? 1 : 0);
    writer.put(value.dim());
    for (const auto size : value.sizes()) writer.put(size);
  }
  return writer.description();
}

Description describe_nothing() {
  return {kNothing};
}

std::optional<Described> read_description(const Description& description) {
  Reader reader(description);
  const auto count = reader.get(kNothing, kMostValues);
  if (count == kNothing) return std::nullopt;
  Described described;
  described.scheme = static_cast<comm::Scheme>(reader.get(0, kLastScheme));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto type = reader.get(kUndefined, 100);
    if (type == kUndefined) {
      described.values.emplace_back();
      described.with_gradients.push_back(false);
      continue;
    }
    const auto dtype = static_cast<torch::ScalarType>(type);
    if (!comm_dtype(dtype)) {
      throw Error(ErrorCode::CorruptData,
                  "activations from another stage are of a type that nobody can send: do all ranks "
                  "run the same version?");
    }
    described.with_gradients.push_back(reader.get(0, 1) == 1);
    described.values.push_back(read_tensor(reader, dtype));
  }
  return described;
}

}  // namespace bimetal::parallel::pipeline
