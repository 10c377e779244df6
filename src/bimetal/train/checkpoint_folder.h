#pragma once
// A folder of checkpoints: which there are, in the order in which they were saved.
// Private to checkpoint.cpp.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace bimetal::train {

struct CheckpointEntry {
  std::filesystem::path path;
  std::uint64_t sequence = 0;  ///< 0: its state.json tells none, being damaged or of a later format
};

/// Where the checkpoint of a step lies: dir/step-00001234.
std::filesystem::path checkpoint_path(const std::filesystem::path& dir, std::int64_t step);

/// The last saved first; those without a sequence come last. Empty if there is no such folder.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& dir);

/// Removes all but the `keep` saved last. Those without a sequence are left alone: they may be
/// somebody else's. Never throws; what cannot be removed is logged.
void prune_checkpoints(const std::filesystem::path& dir, std::int64_t keep) noexcept;

}  // namespace bimetal::train
