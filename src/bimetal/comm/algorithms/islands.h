#pragma once
// All-reduce over islands (ranks that have memory in common): inside by shared memory, between by
// messages. The data are cut into slices, called lanes, as many as the smallest island has ranks.
// In every island the first ranks own one lane each. They reduce it inside, exchange it with the
// owners of the same lane on the other islands (direct.h), and give it to the others
// inside.
//
// An island sends 2S(h-1)/h bytes each way to others, h being the number of islands, spread over
// the connections of all its lanes. A ring over n ranks sends 2S(n-1)/n. If all islands have the
// same number of ranks, this is the two-level scheme of Jia et al., "Highly Scalable Deep Learning
// Training System with Mixed-Precision", 2018, section 3.3, with the exchange in parts. With one
// lane it is that of leaders.

#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/mailbox/channel.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

struct Islands {
  std::vector<std::vector<int>> ranks;  ///< every rank once, the same on all; two islands at least
  ShmTeam* team = nullptr;  ///< of this rank's island, in that order; none where it is alone
};

/// `data` becomes the reduction over all ranks, in the same bits on each. `weights`, one per
/// island, say how much of the exchange falls to each; the same on all ranks.
void islands_all_reduce(Channel& channel, std::span<std::byte> data, const Islands& islands,
                        const std::vector<std::uint32_t>& weights, const Reduction& reduction);

// All-reduce in two levels. Each island (the ranks of one host) reduces to its first rank. These
// ranks exchange between the islands by a ring, and spread the result inside. A host's link carries
// 2S(h-1)/h bytes for h hosts, in place of the 2S(n-1)/n of a ring over all n ranks.

/// `data` becomes the reduction over all ranks, in the same bits on each. `islands` holds every
/// rank once, and is the same on all ranks.
void two_level_all_reduce(Channel& channel, std::span<std::byte> data,
                          const std::vector<std::vector<int>>& islands, const Reduction& reduction);

}  // namespace bimetal::comm
