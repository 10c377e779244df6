#include "bimetal/checkpoint/slices/slice.h"

#include <algorithm>
#include <limits>

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

}  // namespace bimetal::checkpoint
