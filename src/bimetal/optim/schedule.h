#pragma once
// How the learning rate changes over a job. A pure function of the step's number, so that a resumed
// job goes on with the rates that it would have had. Safe from any thread.

#include <cstdint>

#include "bimetal/job/job_config.h"

namespace bimetal::optim {

/// train.learning_rate; with train.base_batch that many times as much as global_batch has base
/// batches (the linear scaling rule: Goyal et al., 2017, §2.1).
double full_rate(const job::TrainConfig& config);

/// The learning rate of step number `step`, counted from 1, in a job of `job_steps` steps.
///
/// Up to step W = train.warmup_steps the rate grows linearly from train.warmup_from, to the full
/// rate in step W (Goyal et al., "Accurate, Large Minibatch SGD", 2017, §2.2). With
/// train.schedule = "cosine" it then falls from the full rate γ in step W + 1 towards r·γ, r =
/// train.min_learning_rate_ratio:
///
///     γ · (r + (1 − r) / 2 · (1 + cos(π (step − 1 − W) / (T − W))))
///
/// with T = train.decay_steps or, if that is 0, `job_steps` (Loshchilov, Hutter, "SGDR", ICLR 2017,
/// equation 5, without restarts), and stays at r·γ after step T.
double learning_rate_at(const job::TrainConfig& config, std::int64_t step, std::int64_t job_steps);

}  // namespace bimetal::optim
