#pragma once
// Argument checks shared by the functions of shares.h.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::balance {

inline void check_ranks(std::int64_t ranks) {
  if (ranks < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a batch is shared by at least one rank, not {}", ranks));
  }
}

inline void check_batch(std::int64_t batch) {
  if (batch < 0 || batch > kMaxBatch) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a batch of {} samples is outside 0…{}", batch, kMaxBatch));
  }
}

/// Σ shares, after checking the list and its sum.
inline std::int64_t checked_sum(std::span<const std::int64_t> shares) {
  check_ranks(static_cast<std::int64_t>(shares.size()));
  std::int64_t sum = 0;
  for (const std::int64_t share : shares) {
    check_batch(share);
    sum += share;
    check_batch(sum);
  }
  return sum;
}

inline void check_same_ranks(std::size_t devices, std::size_t shares) {
  if (devices == shares) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} devices cannot have {} shares", devices, shares));
}

}  // namespace bimetal::balance
