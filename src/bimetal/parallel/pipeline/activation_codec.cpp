#include "bimetal/parallel/pipeline/activation_codec.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::parallel::pipeline {
namespace {

std::size_t count_of(const torch::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

std::span<float> floats_in(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), count_of(tensor)};
}

std::span<std::byte> bytes_in(const torch::Tensor& code) {
  return std::as_writable_bytes(std::span(code.data_ptr<std::uint8_t>(), count_of(code)));
}

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

comm::Scheme scheme_between(const MeshShape& shape, const comm::Topology& topology, int rank,
                            int other, const ActivationCompression& compression) {
  if (compression.links == comm::CompressedLinks::all) return compression.scheme;
  auto from = place_of(shape, rank), to = place_of(shape, other);
  for (from.tensor = 0; from.tensor < shape.tensor_of(from.stage); ++from.tensor) {
    const auto& together = topology.island_of(rank_at(shape, from));
    for (to.tensor = 0; to.tensor < shape.tensor_of(to.stage); ++to.tensor) {
      const bool near = std::ranges::find(together, rank_at(shape, to)) != together.end();
      if (!near && parts_talk(shape, from, to)) return compression.scheme;
    }
  }
  return comm::Scheme::none;
}

std::vector<comm::Scheme> schemes_of_peers(const Mesh& mesh,
                                           const ActivationCompression& compression) {
  std::vector<comm::Scheme> schemes(static_cast<std::size_t>(mesh.pipeline().size()),
                                    comm::Scheme::none);
  if (compression.scheme == comm::Scheme::none) return schemes;
  if (!comm::is_dense(compression.scheme)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("activations cannot be shortened by {}, which leaves elements out: "
                            "take float16, bfloat16 or int8",
                            to_string(compression.scheme)));
  }
  for (std::size_t peer = 0; peer < schemes.size(); ++peer) {
    schemes[peer] = scheme_between(mesh.shape(), mesh.world().topology(), mesh.world().rank(),
                                   mesh.rank_of_peer(static_cast<int>(peer)), compression);
  }
  return schemes;
}

comm::Scheme scheme_of_value(comm::Scheme scheme, const torch::Tensor& value) {
  const bool shorter = scheme != comm::Scheme::none && value.is_floating_point() &&
                       comm::encoded_bytes(scheme, count_of(value)) < value.nbytes();
  return shorter ? scheme : comm::Scheme::none;
}

double sent_part(comm::Scheme scheme, torch::Dtype dtype) {
  if (scheme == comm::Scheme::none) return 1;
  constexpr auto kCount = comm::kQuantBlock;
  const auto whole = static_cast<double>(kCount * c10::elementSize(dtype));
  return std::min(1.0, static_cast<double>(comm::encoded_bytes(scheme, kCount)) / whole);
}

torch::Tensor room_for_code(comm::Scheme scheme, const torch::Tensor& value) {
  const auto bytes = comm::encoded_bytes(scheme, count_of(value));
  return torch::empty({static_cast<std::int64_t>(bytes)}, torch::kUInt8);
}

torch::Tensor encode_tensor(comm::Scheme scheme, const torch::Tensor& floats) {
  auto code = room_for_code(scheme, floats);
  comm::encode(scheme, floats_in(floats), bytes_in(code));
  return code;
}

torch::Tensor decode_tensor(comm::Scheme scheme, const torch::Tensor& code,
                            const torch::Tensor& like) {
  auto floats = torch::empty(like.sizes(), torch::kFloat32);
  comm::decode(scheme, bytes_in(code), floats_in(floats));
  return floats;
}

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
