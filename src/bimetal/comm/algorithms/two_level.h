#pragma once
// All-reduce in two levels. Each island (the ranks of one host) reduces to its first rank. These
// ranks exchange between the islands by a ring, and spread the result inside. A host's link carries
// 2S(h-1)/h bytes for h hosts, in place of the 2S(n-1)/n of a ring over all n ranks.

#include <span>
#include <vector>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// `data` becomes the reduction over all ranks, in the same bits on each. `islands` holds every
/// rank once, and is the same on all ranks.
void two_level_all_reduce(Channel& channel, std::span<std::byte> data,
                          const std::vector<std::vector<int>>& islands, const Reduction& reduction);

}  // namespace bimetal::comm
