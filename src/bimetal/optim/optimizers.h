#pragma once
// The optimizer that a job file asks for. Safe from any thread, an optimizer itself from one.
//
// How the learning rate changes over a job. A pure function of the step's number, so that a resumed
// job goes on with the rates that it would have had. Safe from any thread.

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
/// `dimensions`: those of the tensor that each parameter is a part of, if they are parts.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const job::TrainConfig& config, std::vector<torch::Tensor> parameters,
    const std::vector<std::int64_t>& dimensions = {});

/// The same for a rank's shards of tensors. Adam and AdamW are cpu_adam.h's for parameters on the
/// CPU, and with their state where zero.offload_optimizer puts it. Errors: StateFile's, too.
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

/// train.learning_rate; with train.base_batch that many times as much as global_batch has base
/// batches (the linear scaling rule: Goyal et al., 2017, §2.1).
double full_rate(const job::TrainConfig& config);

/// The learning rate of step number `step`, counted from 1, in a job of `job_steps` steps.
///
/// It grows over W = train.warmup_steps steps from train.warmup_from to the full rate γ. After x
/// steps, x = step − train.warmup_lag but no less than 0, it has come this part of the way, and all
/// of it for x ≥ W:
///
///     train.warmup = "linear":   x / W               (Goyal et al., "Accurate, Large Minibatch
///                                                    SGD", 2017, §2.2)
///     train.warmup = "log":      ln(x + 1) / ln W    (at most 1)
///
/// Then it stays (train.schedule = "constant"), or falls to r·γ, r = train.min_learning_rate_ratio:
///
///     train.schedule = "linear": γ · (1 − (1 − r) (x − W) / (T − W))
///     train.schedule = "cosine": γ · (r + (1 − r) / 2 · (1 + cos(π (step − 1 − W) / (T − W))))
///
/// with T = train.decay_steps or, if that is 0, `job_steps`, and stays there. The cosine is that of
/// Loshchilov, Hutter, "SGDR", ICLR 2017, equation 5, without restarts.
///
/// With train.warmup_lag = 2 these are the rates of DeepSpeed's WarmupLR, WarmupDecayLR and
/// WarmupCosineLR, which take the first rate for two steps and count the cosine two steps ahead.
double learning_rate_at(const job::TrainConfig& config, std::int64_t step, std::int64_t job_steps);

}  // namespace bimetal::optim
