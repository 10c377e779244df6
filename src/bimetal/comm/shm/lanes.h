#pragma once
// The inner level of an all-reduce in two levels. The ranks of a team reduce their data to lanes:
// slices of the data that their first ranks own, one each. Later the owners give the lanes to all
// ranks. In between they may use their lanes freely. It works chunk by chunk, through the slots.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/comm/call.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

// How bytes are divided among chunks and ranks.

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

/// How `bytes` are cut into `number` lanes of which the last may be shorter, and these into chunks:
/// the same wherever these two numbers are.
struct Lanes {
  std::size_t bytes;
  int number;

  Range lane(int j) const { return piece_of(bytes, j, number); }
  /// The longest lane's.
  std::size_t length() const { return lane(0).bytes; }
  std::size_t chunk_bytes() const {
    return ShmTeam::slot_bytes() / static_cast<std::size_t>(number) / kLine * kLine;
  }
  /// One at least, so that every call has its steps.
  std::size_t chunks() const {
    return std::max<std::size_t>(1, (length() + chunk_bytes() - 1) / chunk_bytes());
  }
};

/// For one call on one rank of a team of two ranks or more, made once the call has begun there.
/// Every rank of the team calls the same functions in the same order.
class LaneReduction {
 public:
  /// `data` is this rank's, and cut by `lanes`, which are no more than the team's ranks. avg adds,
  /// as sum does.
  LaneReduction(ShmTeam& team, std::span<std::byte> data, const Lanes& lanes, DType dtype,
                ReduceOp op, WaitGuard& guard);

  /// Chunks [first, last) of this rank's lane become the reduction over the team. What the other
  /// lanes hold has been read by then.
  void reduce(std::size_t first, std::size_t last);

  /// Chunks [first, last) of each lane become what the lane's owner has there.
  void spread(std::size_t first, std::size_t last);

 private:
  struct Step {
    std::size_t slot;
    ShmTeam::Step step;
  };

  // For each chunk: write(k, own slot), a step, and one chunk later read(k, slot, step).
  template <typename Write, typename Read>
  void stream(std::size_t first, std::size_t last, Write write, Read read);

  bool owner() const { return team_.rank() < lanes_.number; }
  std::span<std::byte> chunk(std::size_t k, int lane) const;
  std::byte* place(int rank, std::size_t slot, int lane) const;
  void copy_in(std::size_t slot, std::size_t k, int lane);

  ShmTeam& team_;
  const std::span<std::byte> data_;
  const Lanes lanes_;
  const DType dtype_;
  const ReduceOp op_;
  WaitGuard& guard_;
};

}  // namespace bimetal::comm
