#pragma once
// Where a rank's part of the parameters is kept while whole ones are gathered and freed (level 3).

#include <filesystem>
#include <memory>
#include <vector>

#include "bimetal/parallel/shard/flat_parameters.h"

namespace bimetal::parallel::shard {

enum class Kept {
  OnDevice,
  OnHost,
  OnDisk,  ///< in a file, of which the system holds in memory what was used last
};

/// Gives what the rank keeps of each flat tensor memory of its own. `folder`: of the file, which is
/// returned, where there is one. Errors: StateFile's.
std::shared_ptr<const optim::StateFile> keep_apart(std::vector<FlatParameters>& flats, Kept kept,
                                                   const std::filesystem::path& folder);

}  // namespace bimetal::parallel::shard
