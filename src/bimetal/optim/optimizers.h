#pragma once
// The optimizer that a job file asks for. Safe from any thread, an optimizer itself from one.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bimetal/job/job_config.h"

namespace bimetal::optim {

/// train.optimizer: "sgd" (with momentum), "adam", "adamw" (all three: fused.h; of these two
/// cpu_adam.h where all parameters are on the CPU and contiguous), "lars" (layer_wise.h) or "lamb"
/// (layer_wise.h), at the full rate. With train.decay_on = "matrices" the tensors of fewer than
/// two dimensions are a group of their own, without weight decay. Error(InvalidArgument) otherwise.
/// `dimensions`: of the tensor that each parameter is a part of, where they are parts.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const job::TrainConfig& config, std::vector<torch::Tensor> parameters,
    const std::vector<std::int64_t>& dimensions = {});

/// The same for what a rank keeps of tensors in shards. Adam and AdamW of parameters on the CPU,
/// and with their state where zero.offload_optimizer says, are cpu_adam.h's. Errors: StateFile's,
/// too.
std::unique_ptr<torch::optim::Optimizer> make_shard_optimizer(
    const job::JobConfig& job, std::vector<torch::Tensor> parameters,
    const std::vector<std::int64_t>& dimensions);

/// Whether the update of an element depends on the rest of its tensor, or on the tensor's shape, so
/// that make_optimizer must be given the model's whole tensors: LARS, LAMB, and any with
/// train.decay_on = "matrices". The others work element by element, on any parts of tensors alike.
/// Error as make_optimizer's.
bool needs_whole_tensors(const job::TrainConfig& config);

/// Sets the learning rate of all groups of parameters.
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace bimetal::optim
