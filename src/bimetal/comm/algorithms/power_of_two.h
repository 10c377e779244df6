#pragma once
// Lets algorithms for 2^k ranks serve any number n. If n is no power of two, the first 2(n - 2^k)
// ranks work in pairs: the even one gives its data to the odd one and gets the result back.

#include <bit>

namespace bimetal::comm {

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
