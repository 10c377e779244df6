#pragma once
// The reduction of a call, as the algorithms use it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/comm/dtype.h"
#include "bimetal/comm/mailbox/channel.h"
#include "bimetal/comm/mailbox/inbox.h"

namespace bimetal::comm {

struct Reduction {
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  int size = 1;  ///< ranks that contribute

  /// there = there op arrived.
  Combine combine() const;

  /// The same for the last contribution to an element: avg's division follows.
  Combine combine_last() const;

  /// The work left when all contributions are in: avg's division.
  void finish(std::span<std::byte> data) const;
};

// All-reduce over unequal links. Rank r owns a piece of the message as large as its weight, gets
// all others' contributions to it, and sends each of them the result. A rank of weight w carries
// S(1 + (n-2)w) bytes each way over its link. With weight 0 that is S, which no algorithm can
// avoid: its data has to leave, and the result has to arrive. A ring carries 2S(n-1)/n. The best
// weights follow from the links' bandwidths: they minimise the time of the slowest link.

/// Weights are whole numbers, since ranks must agree to the last element and floating-point
/// arithmetic differs between processors. They are relative to their sum, about this.
inline constexpr std::uint32_t kWholeWeight = 1u << 20;

/// Those with which max_r (1 + (n-2)·w_r) / bandwidth_r is least. `bandwidths` (any unit) are of
/// each rank's own link, one per rank, all above 0. Pure; to be computed on one rank for all.
std::vector<std::uint32_t> weights_for(const std::vector<double>& bandwidths);

/// How many of `count` elements each rank owns. Pure, the same on every machine. At least one
/// weight is above 0.
std::vector<std::size_t> counts_for(const std::vector<std::uint32_t>& weights, std::size_t count);

/// `data` becomes the reduction over all ranks, in the same bits on each. `weights`, one per rank,
/// must be the same on all ranks.
void weighted_all_reduce(Channel& channel, std::span<std::byte> data,
                         const std::vector<std::uint32_t>& weights, const Reduction& reduction);

}  // namespace bimetal::comm
