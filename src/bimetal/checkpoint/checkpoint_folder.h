#pragma once
// A folder of checkpoints: which there are, in the order in which they were saved.
// Private to checkpoint.cpp.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"

namespace bimetal::checkpoint {

/// Sequence 0: its state.json tells nothing, being damaged or of a later format.
using CheckpointEntry = LastSave;

/// Where the checkpoint of a step lies: dir/step-00001234.
std::filesystem::path checkpoint_path(const std::filesystem::path& dir, std::int64_t step);

/// The last saved first; those without a sequence come last. Empty if there is no such folder.
/// Error(System) if the folder or a state.json cannot be read just now: the order is not known
/// then.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& dir);

/// Removes all but the `keep` saved last. Those without a sequence are left alone: they may be
/// somebody else's. Never throws; what cannot be removed is logged.
void prune_checkpoints(const std::filesystem::path& dir, std::int64_t keep) noexcept;

}  // namespace bimetal::checkpoint
