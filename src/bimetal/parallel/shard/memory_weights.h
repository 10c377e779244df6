#pragma once
// Sizes of shards in proportion to each rank's free memory.

#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/shard/flat_parameters.h"

namespace bimetal::parallel::shard {

// Where a rank's part of the parameters is kept while whole ones are gathered and freed (level 3).

enum class Kept {
  OnDevice,
  OnHost,
  OnDisk,  ///< in a file, of which the system holds in memory what was used last
};

/// Gives what the rank keeps of each flat tensor memory of its own. `folder`: of the file, which is
/// returned, where there is one. Errors: StateFile's.
std::shared_ptr<const optim::StateFile> keep_apart(std::vector<FlatParameters>& flats, Kept kept,
                                                   const std::filesystem::path& folder);

/// Free bytes of each rank's device, or ones if any rank cannot tell its own: equal parts are no
/// worse a guess than any other then. With `copies` there is room for each rank's shard and the one
/// that it copies (shard_copies.h). `device`: this rank's. Collective. Errors: the fabric's.
std::vector<double> weights_by_memory(comm::Group group, const torch::Device& device,
                                      Deadline deadline, bool copies = false);

}  // namespace bimetal::parallel::shard
