#pragma once
// Sizes of shards in proportion to each rank's free memory.

#include <torch/csrc/api/include/torch/types.h>

#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"

namespace bimetal::parallel::shard {

/// Free bytes of each rank's device, or ones if any rank cannot tell its own: equal parts are no
/// worse a guess than any other then. With `copies` there is room for each rank's shard and the one
/// that it copies (shard_copies.h). `device`: this rank's. Collective. Errors: the fabric's.
std::vector<double> weights_by_memory(comm::Group group, const torch::Device& device,
                                      Deadline deadline, bool copies = false);

}  // namespace bimetal::parallel::shard
