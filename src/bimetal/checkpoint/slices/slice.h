#pragma once
// Parts of tensors: what a rank keeps of one, whoever cut it. Pure, and without libtorch.

#include <cstdint>
#include <span>
#include <vector>

namespace bimetal::checkpoint {

/// A box of a tensor, `size` elements from `offset` on along each of its dimensions: what a tensor
/// part or a pipeline stage keeps. Or, with one number each, a range of its elements in row-major
/// order: what a shard keeps. (Of a tensor of one dimension the two are the same.)
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

/// Whether it is a slice of a tensor of that shape. Others must not be given to what follows.
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

}  // namespace bimetal::checkpoint
