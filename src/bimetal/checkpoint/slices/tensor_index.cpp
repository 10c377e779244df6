#include "bimetal/checkpoint/slices/tensor_index.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::checkpoint {
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
