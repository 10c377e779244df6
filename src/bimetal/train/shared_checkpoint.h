#pragma once
// Checkpoints of a job of many ranks: rank 0 alone touches the files, so that the folder may be on
// its machine only.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <filesystem>
#include <optional>

#include "bimetal/comm/group.h"
#include "bimetal/train/checkpoint.h"
#include "bimetal/train/job.h"

namespace bimetal::train {

/// Deadline of what waits for rank 0's disk. Generous: a lost rank is found by its heartbeat.
inline constexpr std::chrono::minutes kFileTimeout{10};

/// Saves on rank 0 and returns on every rank once the checkpoint is in place; the path is rank 0's.
/// Collective. Errors of train::save_checkpoint on rank 0 alone, which must then end the group.
std::filesystem::path save_shared_checkpoint(comm::Group group, const CheckpointConfig& config,
                                             const torch::nn::Module& module,
                                             const torch::optim::Optimizer& optimizer,
                                             const TrainingState& state);

/// Loads what rank 0's `path` names and gives state and optimizer to every rank (the parameters
/// follow with parallel::DataParallel's first broadcast); others' `path` is ignored. Nothing if
/// rank 0 has none. Collective. Errors of train::load_checkpoint on rank 0 alone, as above.
std::optional<TrainingState> load_shared_checkpoint(
    comm::Group group, const std::optional<std::filesystem::path>& path, torch::nn::Module& module,
    torch::optim::Optimizer& optimizer, const torch::Device& device);

/// Error(NotFinite), on every rank, if any rank's parameters hold a NaN or an infinity: such a
/// state must not replace the last good checkpoint. Collective.
void require_finite_parameters(comm::Group group, const torch::nn::Module& module,
                               std::int64_t step, std::chrono::milliseconds timeout);

}  // namespace bimetal::train
