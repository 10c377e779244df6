#pragma once
// Which slice of which tensor is in which file of a checkpoint.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bimetal/checkpoint/safetensors.h"

namespace bimetal::checkpoint {

// Slices of tensors: the part that a rank keeps of one, whatever cut it. Pure, and without
// libtorch.

/// A box of a tensor, `size` elements from `offset` on along each of its dimensions: such as a
/// tensor part or a pipeline stage keeps. Or, with one number each, a range of its elements in
/// row-major order: such as a shard keeps. (Of a tensor of one dimension the two are the same.)
struct Slice {
  std::vector<std::int64_t> offset, size;

  /// Elements.
  std::int64_t count() const noexcept;
  bool operator==(const Slice&) const = default;
};

Slice whole_slice(std::span<const std::int64_t> shape);
Slice flat_range(std::int64_t offset, std::int64_t count);

/// Elements of a tensor; -1 for a shape that is none, or one that overflows.
std::int64_t elements_of(std::span<const std::int64_t> shape) noexcept;

/// Whether it is a slice of a tensor of that shape. Others must not be given to the functions
/// below.
bool lies_in(const Slice& slice, std::span<const std::int64_t> shape) noexcept;

/// Elements that follow each other in a tensor and in a slice of it.
struct Run {
  std::int64_t whole = 0;  ///< the first one's place in the tensor, row-major
  std::int64_t part = 0;   ///< and in the slice
  std::int64_t count = 0;
  bool operator==(const Run&) const = default;
};

/// All of a slice, in the tensor's order.
std::vector<Run> runs_of(const Slice& slice, std::span<const std::int64_t> shape);

/// Elements that two slices of a tensor have in common.
struct Overlap {
  std::int64_t from = 0, to = 0;  ///< the first one's place in each
  std::int64_t count = 0;
  bool operator==(const Overlap&) const = default;
};

/// All of them, in the tensor's order: to make `to` of what `from` holds.
std::vector<Overlap> overlaps(const Slice& from, const Slice& to,
                              std::span<const std::int64_t> shape);

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

/// The tensors in a file of whole tensors.
TensorIndex index_of(const SafetensorsHeader& header, const std::string& file);

/// Adds what another rank has. A slice that is there already is a copy, and left out.
/// Error(Internal) where the two are not of the same tensor.
void merge_into(TensorIndex& all, TensorIndex more);

/// The slices' elements must be all of each tensor's, each once. Error(CorruptData), beginning with
/// `origin`, names the first tensor that is not so.
void require_complete(const TensorIndex& index, const std::string& origin);

/// Tensors of those shapes and types without values, for comparison.
TensorMap without_values(const TensorIndex& index);

/// The way into state.json and back. Error(CorruptData), beginning with `origin`, for nonsense;
/// nlohmann's exceptions.
nlohmann::ordered_json index_json(const TensorIndex& index);
TensorIndex parse_index(const nlohmann::ordered_json& json, const std::string& origin);

}  // namespace bimetal::checkpoint
