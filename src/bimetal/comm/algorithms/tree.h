#pragma once
// Binomial trees: log2(n) levels, in which every rank below the root has one parent. Long messages
// flow through the levels part by part.
//
// All-reduce in log2(n) exchanges of the whole message: the fewest steps, for short messages whose
// latency counts. (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", 2005, section 4.5.)

#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// The root's `data` is copied to every rank.
void tree_broadcast(Channel& channel, std::span<std::byte> data, int root);

/// The root's `data` becomes the reduction over all ranks; elsewhere it is scratch.
void tree_reduce(Channel& channel, std::span<std::byte> data, int root, DType dtype, ReduceOp op);

/// `data` becomes the reduction over all ranks, in the same bits on each: to rank 0 and back.
void tree_all_reduce(Channel& channel, std::span<std::byte> data, const Reduction& reduction);

/// `data` becomes the reduction over all ranks, in the same bits on each.
void recursive_doubling_all_reduce(Channel& channel, std::span<std::byte> data, DType dtype,
                                   ReduceOp op);

// Rabenseifner's all-reduce: reduce-scatter by recursive halving, then all-gather by recursive
// doubling. It sends as few bytes as a ring, in 2·log2(n) steps in place of 2(n-1). If n is no
// power of two, 2(n - 2^k) ranks first pair up, which costs them the whole message twice. (Thakur,
// Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
// section 4.5.)

/// `data` becomes the reduction over all ranks, in the same bits on each.
void halving_doubling_all_reduce(Channel& channel, std::span<std::byte> data,
                                 const Reduction& reduction);

/// Before: rank r holds segment r; all are equally long. After: every rank holds all of them. In
/// ceil(log2(n)) steps, where a ring takes n - 1, and with a copy of all: for short segments, whose
/// latency counts. (J. Bruck et al., "Efficient algorithms for all-to-all communications in
/// multiport message-passing systems", IEEE TPDS 8(11), 1997, section 4.)
void doubling_all_gather(Channel& channel, const std::vector<std::span<std::byte>>& segments);

/// Whether that is quicker than a ring. The same answer on all ranks.
bool doubling_suits(const std::vector<std::span<std::byte>>& segments);

// Barrier in ceil(log2(n)) rounds without a root (Hensgen, Finkel and Manber, "Two algorithms for
// barrier synchronization", 1988). After round k a rank knows, directly or indirectly, of 2^(k+1)
// ranks.

/// Returns on no rank before it has been called on all.
void dissemination_barrier(Channel& channel);

// Lets algorithms for 2^k ranks serve any number n. If n is no power of two, the first 2(n - 2^k)
// ranks work in pairs: the even one gives its data to the odd one and gets the result back.

struct PowerOfTwo {
  int active;  ///< ranks in the exchange: the largest power of two not above the group's size
  int pairs;   ///< ranks below 2 × pairs are paired

  explicit PowerOfTwo(int size)
      : active(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
        pairs(size - active) {}

  bool paired(int rank) const { return rank < 2 * pairs; }
  /// Whether the rank leaves the exchange to its partner, the next one.
  bool idle(int rank) const { return paired(rank) && rank % 2 == 0; }
  int position_of(int rank) const { return paired(rank) ? rank / 2 : rank - pairs; }
  int rank_at(int position) const { return position < pairs ? 2 * position + 1 : position + pairs; }
};

}  // namespace bimetal::comm
