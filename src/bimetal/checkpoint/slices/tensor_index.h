#pragma once
// Which slice of which tensor is in which file of a checkpoint.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/checkpoint/slices/slice.h"

namespace bimetal::checkpoint {

/// In the slice's own shape.
struct StoredSlice {
  std::string file;  ///< beside state.json
  std::string key;   ///< its name in the file: the tensor's, but for further slices of one tensor
  Slice slice;
  bool operator==(const StoredSlice&) const = default;
};

struct StoredTensor {
  torch::Dtype dtype = torch::kFloat32;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::vector<StoredSlice> slices;
  bool operator==(const StoredTensor&) const = default;
};

using TensorIndex = std::map<std::string, StoredTensor>;

/// What a file of whole tensors holds.
TensorIndex index_of(const SafetensorsHeader& header, const std::string& file);

/// Adds what another rank has. A slice that is there already is a copy, and left out.
/// Error(Internal) where the two are not of the same tensor.
void merge_into(TensorIndex& all, TensorIndex more);

/// The slices' elements must be all of each tensor's, each once. Error(CorruptData), beginning with
/// `origin`, names the first tensor that is not so.
void require_complete(const TensorIndex& index, const std::string& origin);

/// Tensors of those shapes and types without values, for comparison.
TensorMap without_values(const TensorIndex& index);

/// The way into state.json and back. Error(CorruptData), beginning with `origin`, for what makes no
/// sense; what nlohmann's library throws.
nlohmann::ordered_json index_json(const TensorIndex& index);
TensorIndex parse_index(const nlohmann::ordered_json& json, const std::string& origin);

}  // namespace bimetal::checkpoint
