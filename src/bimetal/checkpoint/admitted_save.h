#pragma once
// Saving where another process may save, too: whoever comes second is asked again, while nobody
// else can save, whether its checkpoint is still wanted.

#include <functional>

#include "bimetal/checkpoint/checkpoint.h"

namespace bimetal::checkpoint {

/// Gets the newest checkpoint of the folder, while no other process can add one (as far as the
/// folder's file system has locks). Throws if none must be put beside it.
using AdmitSave = std::function<void(const LastSave& newest)>;

/// As the save_checkpoint of checkpoint.h. What `admit` throws, with older checkpoints untouched;
/// Error(Timeout) if another process does not get on with a save of its own.
std::filesystem::path save_checkpoint(const std::filesystem::path& dir,
                                      const task::ModelState& model,
                                      const torch::optim::Optimizer& optimizer,
                                      const TrainingState& state, std::int64_t keep,
                                      const AdmitSave& admit);

}  // namespace bimetal::checkpoint
