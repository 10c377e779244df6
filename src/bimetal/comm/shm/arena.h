#pragma once
// Users' memory that all ranks of a team see: one segment of each rank, all of one size.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::comm {

class Arena {
 public:
  /// Where the users' memory begins in its segment, so that it begins at a page.
  static constexpr std::size_t kOffset = 4096;
  static constexpr std::size_t segment_bytes(std::size_t users) { return kOffset + users; }

  /// `number` is the same on all ranks. `segments[r]` is rank r's.
  Arena(std::uint64_t number, int rank, std::vector<net::SharedMemory> segments)
      : number_(number), rank_(rank), segments_(std::move(segments)) {}

  std::uint64_t number() const noexcept { return number_; }

  /// A rank's memory as this process sees it.
  std::span<std::byte> of(int rank) const { return segments_[rank].bytes().subspan(kOffset); }
  std::span<std::byte> own() const { return of(rank_); }

  /// Whether this rank's `bytes` lie here.
  bool holds(std::span<const std::byte> bytes) const {
    const auto memory = own();
    return bytes.data() >= memory.data() &&
           bytes.data() + bytes.size() <= memory.data() + memory.size();
  }

 private:
  const std::uint64_t number_;
  const int rank_;
  const std::vector<net::SharedMemory> segments_;
};

}  // namespace bimetal::comm
