#pragma once
// One message between each two ranks that have data for each other. A rank's data for itself is
// copied.

#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

// All-reduce of one block in two steps. Every rank owns a piece of it, gets all others'
// contributions to it, and sends each of them the result. This is reduce-scatter and all-gather by
// direct messages (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", 2005, section 4.3). The steps are called separately, so that those of the
// next block can overlap.

/// For one block on one rank. All ranks call begin, reduce and finish in this order, and mix the
/// steps of several blocks in the same way.
class DirectExchange {
 public:
  /// `counts[r]` elements of `block`, one after the other, are rank r's. Messages have `part_bytes`
  /// at most. `scratch` holds scratch_bytes().
  DirectExchange(Channel& channel, std::span<std::byte> block,
                 const std::vector<std::size_t>& counts, std::size_t part_bytes,
                 std::span<std::byte> scratch, const Reduction& reduction);

  static std::size_t scratch_bytes(std::size_t own_bytes, int ranks) {
    return own_bytes * static_cast<std::size_t>(ranks - 1);
  }

  /// Sends this rank's contributions to the others' pieces.
  void begin();
  /// Waits for theirs to its own, reduces it, and sends them the result. `scratch` is free again.
  void reduce();
  /// Waits for the results of the other pieces.
  void finish();

 private:
  using Parts = std::vector<std::span<std::byte>>;
  struct Arriving {
    std::span<std::byte> bytes;
    Channel::Ticket ticket;
  };

  const Parts& own() const { return pieces_[static_cast<std::size_t>(channel_.rank())]; }
  const Parts& piece_of(int rank) const { return pieces_[static_cast<std::size_t>(rank)]; }
  void post_contributions();
  void post_results();
  void reduce_part(std::size_t part);

  Channel& channel_;
  std::span<std::byte> scratch_;
  const Reduction reduction_;
  std::vector<Parts> pieces_;                         // by rank
  std::vector<std::vector<Arriving>> contributions_;  // by other rank
  std::vector<Channel::Ticket> results_;
};

using ConstSegments = std::vector<std::span<const std::byte>>;
using MutableSegments = std::vector<std::span<std::byte>>;

/// Copies a rank's own part. The two may be the same memory: gathering in place is allowed.
void copy_own(std::span<const std::byte> from, std::span<std::byte> to);

/// Rank r's `own` becomes output[r] on the root; `output` is ignored elsewhere.
void direct_gather(Channel& channel, std::span<const std::byte> own, const MutableSegments& output,
                   int root);

/// The root's input[r] becomes `own` of rank r; `input` is ignored elsewhere.
void direct_scatter(Channel& channel, const ConstSegments& input, std::span<std::byte> own,
                    int root);

/// Rank i's input[j] becomes rank j's output[i].
void direct_all_to_all(Channel& channel, const ConstSegments& input, const MutableSegments& output);

}  // namespace bimetal::comm
