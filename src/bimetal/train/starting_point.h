#pragma once
// Where a run begins: at the first sample, or where a checkpoint left off.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "bimetal/comm/group.h"
#include "bimetal/train/checkpoint.h"
#include "bimetal/train/job.h"
#include "bimetal/train/observer.h"

namespace bimetal::train {

/// Loads rank 0's checkpoint into the optimizer and the random numbers of every rank and into the
/// parameters of rank 0; without one, the state of a fresh start. Another global batch than the
/// checkpoint's is allowed and noted. Collective. Errors: InvalidArgument for another seed, since
/// the order of samples would change within the epoch; those of load_shared_checkpoint.
TrainingState starting_point(comm::Group group, const Job& job,
                             const std::optional<std::filesystem::path>& resume,
                             torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                             const torch::Device& device, Observer& observer);

/// Optimizer steps that the job will have done at its end, those before `start` included.
std::int64_t planned_steps(const TrainConfig& config, std::int64_t dataset_size,
                           const TrainingState& start);

/// The state of torch's default CPU generator, as checkpoints carry it.
std::vector<std::uint8_t> random_state();
void set_random_state(const std::vector<std::uint8_t>& state);

}  // namespace bimetal::train
