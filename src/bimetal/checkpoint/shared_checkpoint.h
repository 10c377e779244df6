#pragma once
// Checkpoints of a job of many ranks: rank 0 alone touches the files, so that the folder may be on
// its machine only.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <filesystem>
#include <optional>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"

namespace bimetal::checkpoint {

/// Deadline of what waits for rank 0's disk. Generous: a lost rank is found by its heartbeat, and a
/// stuck one by comm::do_watched.
inline constexpr std::chrono::minutes kFileTimeout{10};

/// Saves on rank 0 and returns on every rank once the checkpoint is in place; the path is rank 0's.
/// Collective. Errors of train::save_checkpoint on rank 0 alone, which must then end the group.
std::filesystem::path save_shared_checkpoint(comm::Group group, const job::CheckpointConfig& config,
                                             const task::ModelState& model,
                                             const torch::optim::Optimizer& optimizer,
                                             const TrainingState& state);

/// Loads what rank 0's `path` names and gives state and optimizer to every rank (the parameters
/// follow with parallel::ReplicatedModel's first broadcast); others' `path` is ignored. Nothing if
/// rank 0 has none. Collective. Errors of load_checkpoint, of rank 0 and on every rank;
/// Error(CorruptData) on a rank that is sent what makes no sense.
std::optional<TrainingState> load_shared_checkpoint(
    comm::Group group, const std::optional<std::filesystem::path>& path,
    const task::ModelState& model, torch::optim::Optimizer& optimizer);

/// Error(NotFinite), on every rank, if any rank's parameters hold a NaN or an infinity: such a
/// state must not replace the last good checkpoint. Collective.
void require_finite_parameters(comm::Group group, const task::ModelState& model, std::int64_t step,
                               std::chrono::milliseconds timeout);

}  // namespace bimetal::checkpoint
