#pragma once
// Measures the links between the ranks of a group. Pairs of ranks exchange messages, first short
// ones, then longer ones until one takes long enough to be measured.

#include <vector>

#include "bimetal/comm/algorithm.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// The group's plan, the same on all ranks: rank 0 makes it. `leaves_host` says whether this rank
/// is connected with any other by more than its own machine; nothing is measured where no rank is.
/// The links are those between `measuring`, some or all of the ranks, rank 0 among them: the plan
/// is for these. Part of a call: every rank of the channel does it as its first step. Costs some
/// tenths of a second on slow links, a round of short messages on one host.
LinkPlan agree_on_plan(Channel& channel, bool leaves_host, const std::vector<int>& measuring);

}  // namespace bimetal::comm
