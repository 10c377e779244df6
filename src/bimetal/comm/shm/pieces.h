#pragma once
// How bytes are divided among chunks and ranks.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "bimetal/comm/call.h"
#include "bimetal/comm/shm/segment.h"

namespace bimetal::comm {

inline std::size_t rounded_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// `total` bytes in the fewest chunks of at most `most` bytes, all but the last of one length, which
// is whole cache lines and so whole elements.
struct Chunks {
  std::size_t total, length, number;

  Chunks(std::size_t total_bytes, std::size_t most) : total(total_bytes) {
    most = std::max(most / kLine * kLine, kLine);
    const std::size_t fewest = std::max<std::size_t>(1, (total + most - 1) / most);
    length = std::max(rounded_up((total + fewest - 1) / fewest, kLine), kLine);
    number = (total + length - 1) / length;
  }
  std::size_t begin(std::size_t k) const { return k * length; }
  std::size_t bytes(std::size_t k) const { return std::min(length, total - begin(k)); }
};

struct Range {
  std::size_t begin, bytes;
};

// Piece j of n of `bytes`, in whole lines.
inline Range piece_of(std::size_t bytes, int j, int n) {
  const auto ranks = static_cast<std::size_t>(n);
  const auto length = rounded_up((bytes + ranks - 1) / ranks, kLine);
  const auto begin = std::min(static_cast<std::size_t>(j) * length, bytes);
  return {begin, std::min(length, bytes - begin)};
}

/// Where each rank's part of a whole lies.
struct Parts {
  std::vector<Range> ranges;
  std::size_t longest = 0;

  Parts(const std::vector<std::size_t>& counts, std::size_t element) {
    std::size_t begin = 0;
    for (const std::size_t count : counts) {
      ranges.push_back({begin, count * element});
      begin += count * element;
      longest = std::max(longest, count * element);
    }
  }
  /// Of a call that cuts its data by ranks, of which there are so many.
  Parts(const Call& call, int ranks)
      : Parts(call.part_counts.empty()
                  ? std::vector<std::size_t>(static_cast<std::size_t>(ranks), call.count)
                  : call.part_counts,
              size_of(call.dtype)) {}

  /// What chunk k has of rank r's part, as a range of the whole.
  Range of_chunk(const Chunks& chunks, std::size_t k, std::size_t r) const {
    const Range& part = ranges[r];
    const std::size_t begin = std::min(chunks.begin(k), part.bytes);
    return {part.begin + begin, std::min(chunks.length, part.bytes - begin)};
  }
};

}  // namespace bimetal::comm
