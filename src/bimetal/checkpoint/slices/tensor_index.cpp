#include "bimetal/checkpoint/slices/tensor_index.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::checkpoint {
namespace {

using Shape = std::vector<std::int64_t>;

/// The dimensions that the slice's numbers are of.
Shape cut_dimensions(const Slice& slice, std::span<const std::int64_t> shape) {
  if (slice.offset.size() == shape.size()) return {shape.begin(), shape.end()};
  return {elements_of(shape)};
}

}  // namespace

std::int64_t Slice::count() const noexcept {
  std::int64_t count = 1;
  for (const auto length : size) count *= length;
  return count;
}

Slice whole_slice(std::span<const std::int64_t> shape) {
  return {Shape(shape.size(), 0), {shape.begin(), shape.end()}};
}

Slice flat_range(std::int64_t offset, std::int64_t count) {
  return {{offset}, {count}};
}

std::int64_t elements_of(std::span<const std::int64_t> shape) noexcept {
  std::int64_t count = 1;
  for (const auto length : shape) {
    const auto factor = std::max<std::int64_t>(length, 1);
    if (length < 0 || count > std::numeric_limits<std::int64_t>::max() / factor) return -1;
    count *= factor;
  }
  return std::ranges::find(shape, 0) == shape.end() ? count : 0;
}

bool lies_in(const Slice& slice, std::span<const std::int64_t> shape) noexcept {
  if (slice.offset.size() != slice.size.size() || elements_of(shape) < 0) return false;
  if (slice.offset.size() != shape.size() && slice.offset.size() != 1) return false;
  const auto dimensions = cut_dimensions(slice, shape);
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const auto offset = slice.offset[i], size = slice.size[i];
    if (offset < 0 || size < 0 || offset > dimensions[i] || size > dimensions[i] - offset) {
      return false;
    }
  }
  return true;
}

std::vector<Run> runs_of(const Slice& slice, std::span<const std::int64_t> shape) {
  if (slice.count() == 0) return {};
  const auto dimensions = cut_dimensions(slice, shape);
  Shape strides(dimensions.size(), 1);
  for (std::size_t i = dimensions.size(); i-- > 1;) strides[i - 1] = strides[i] * dimensions[i];
  // From the last dimension on, whole ones join the one before them into one run.
  std::size_t outer = dimensions.size();
  std::int64_t length = 1;
  while (outer > 0) {
    --outer;
    length *= slice.size[outer];
    if (slice.size[outer] != dimensions[outer]) break;
  }
  std::vector<Run> runs;
  for (std::int64_t part = 0; part < slice.count(); part += length) {
    std::int64_t left = part / length;
    std::int64_t whole = dimensions.empty() ? 0 : slice.offset[outer] * strides[outer];
    for (std::size_t i = outer; i-- > 0; left /= slice.size[i]) {
      whole += (slice.offset[i] + left % slice.size[i]) * strides[i];
    }
    runs.push_back({whole, part, length});
  }
  return runs;
}

std::vector<Overlap> overlaps(const Slice& from, const Slice& to,
                              std::span<const std::int64_t> shape) {
  const auto there = runs_of(from, shape), here = runs_of(to, shape);
  std::vector<Overlap> common;
  for (std::size_t i = 0, j = 0; i < there.size() && j < here.size();) {
    const auto &a = there[i], &b = here[j];
    const auto begin = std::max(a.whole, b.whole);
    const auto a_end = a.whole + a.count, b_end = b.whole + b.count;
    const auto end = std::min(a_end, b_end);
    if (begin < end) {
      common.push_back({a.part + begin - a.whole, b.part + begin - b.whole, end - begin});
    }
    a_end <= b_end ? ++i : ++j;
  }
  return common;
}

namespace {

using Json = nlohmann::ordered_json;

Json slice_json(const StoredSlice& stored, const std::string& name) {
  Json json = {{"file", stored.file}, {"offset", stored.slice.offset}, {"size", stored.slice.size}};
  if (stored.key != name) json["tensor"] = stored.key;
  return json;
}

StoredSlice parse_slice(const Json& json, const std::string& name) {
  StoredSlice stored;
  json.at("file").get_to(stored.file);
  stored.key = json.value("tensor", name);
  json.at("offset").get_to(stored.slice.offset);
  json.at("size").get_to(stored.slice.size);
  return stored;
}

[[noreturn]] void refuse_index(const std::string& origin, const std::string& name,
                               const char* flaw) {
  throw Error(ErrorCode::CorruptData, fmt::format("{} is damaged: of '{}' {}", origin, name, flaw));
}

bool is_complete(const StoredTensor& tensor) {
  std::vector<Run> runs;
  for (const auto& stored : tensor.slices) {
    std::ranges::copy(runs_of(stored.slice, tensor.shape), std::back_inserter(runs));
  }
  std::ranges::sort(runs, {}, &Run::whole);
  std::int64_t covered = 0;
  for (const auto& run : runs) {
    if (run.whole != covered) return false;
    covered += run.count;
  }
  return covered == elements_of(tensor.shape);
}

}  // namespace

TensorIndex index_of(const SafetensorsHeader& header, const std::string& file) {
  TensorIndex index;
  for (const auto& entry : header.entries) {
    index[entry.name] = {entry.dtype, entry.shape, {{file, entry.name, whole_slice(entry.shape)}}};
  }
  return index;
}

void merge_into(TensorIndex& all, TensorIndex more) {
  for (auto& [name, tensor] : more) {
    const auto [place, is_new] = all.try_emplace(name, std::move(tensor));
    if (is_new) continue;
    auto& there = place->second;
    if (there.dtype != tensor.dtype || there.shape != tensor.shape) {
      throw Error(ErrorCode::Internal,
                  fmt::format("ranks keep slices of different tensors named '{}'", name));
    }
    for (auto& slice : tensor.slices) {
      const bool known =
          std::ranges::find(there.slices, slice.slice, &StoredSlice::slice) != there.slices.end();
      if (!known) there.slices.push_back(std::move(slice));
    }
  }
}

void require_complete(const TensorIndex& index, const std::string& origin) {
  for (const auto& [name, tensor] : index) {
    if (!is_complete(tensor)) {
      refuse_index(origin, name, "there is not each element in one slice");
    }
  }
}

TensorMap without_values(const TensorIndex& index) {
  TensorMap tensors;
  for (const auto& [name, tensor] : index) {
    tensors[name] = torch::empty(tensor.shape, torch::dtype(tensor.dtype).device(torch::kMeta));
  }
  return tensors;
}

Json index_json(const TensorIndex& index) {
  Json all = Json::object();
  for (const auto& [name, tensor] : index) {
    Json slices = Json::array();
    for (const auto& stored : tensor.slices) slices.push_back(slice_json(stored, name));
    all[name] = {{"dtype", format_name(tensor.dtype)}, {"shape", tensor.shape}, {"slices", slices}};
  }
  return all;
}

TensorIndex parse_index(const Json& json, const std::string& origin) {
  TensorIndex index;
  for (const auto& [name, value] : json.items()) {
    StoredTensor tensor;
    const auto dtype = named_dtype(value.at("dtype").get<std::string>());
    if (!dtype) refuse_index(origin, name, "the type is unknown");
    tensor.dtype = *dtype;
    value.at("shape").get_to(tensor.shape);
    for (const auto& slice : value.at("slices")) {
      tensor.slices.push_back(parse_slice(slice, name));
      if (!lies_in(tensor.slices.back().slice, tensor.shape)) {
        refuse_index(origin, name, "a slice does not lie in the tensor");
      }
    }
    index.emplace(name, std::move(tensor));
  }
  return index;
}

}  // namespace bimetal::checkpoint
