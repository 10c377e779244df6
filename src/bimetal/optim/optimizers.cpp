#include "bimetal/optim/optimizers.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/optim/cpu_adam.h"
#include "bimetal/optim/fused.h"
#include "bimetal/optim/layer_wise.h"

namespace bimetal::optim {
namespace {

using Parameters = std::vector<torch::Tensor>;
using Dimensions = std::vector<std::int64_t>;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using MadeOptimizer = std::unique_ptr<torch::optim::Optimizer>;

/// Weight decay is for what multiplies, as is usual for GPT: not for biases and normalizations,
/// whose tensors have one dimension.
template <typename Made, typename Options>
MadeOptimizer make_with(const job::TrainConfig& config, Parameters parameters,
                        const Dimensions& dimensions, const Options& options) {
  if (config.decay_on == "all") return std::make_unique<Made>(std::move(parameters), options);
  Parameters matrices, vectors;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto dimension = dimensions.empty() ? parameters[i].dim() : dimensions[i];
    (dimension >= 2 ? matrices : vectors).push_back(parameters[i]);
  }
  const bool any_vectors = !vectors.empty();
  Groups groups;
  if (!matrices.empty()) groups.emplace_back(std::move(matrices));
  if (any_vectors) groups.emplace_back(std::move(vectors));
  auto made = std::make_unique<Made>(std::move(groups), options);
  if (any_vectors) {
    // Afterwards, since libtorch takes a 0 that is given to it for the lack of a value.
    auto undecayed = options;
    undecayed.weight_decay(0);
    made->param_groups().back().set_options(std::make_unique<Options>(undecayed));
  }
  return made;
}

/// Makes Adam, AdamW and LAMB. Each has an epsilon of its own unless the job gives one.
template <typename Made, typename Options>
MadeOptimizer make_adam_like(const job::TrainConfig& config, Parameters parameters,
                             const Dimensions& dimensions) {
  Options options(full_rate(config));
  options.betas({config.beta1, config.beta2}).weight_decay(config.weight_decay);
  if (config.epsilon > 0) options.eps(config.epsilon);
  return make_with<Made>(config, std::move(parameters), dimensions, options);
}

/// Parameters on the CPU get the merged update, unless it cannot step them.
template <typename Here, typename Elsewhere, typename Options>
MadeOptimizer make_adam(const job::TrainConfig& config, Parameters parameters,
                        const Dimensions& dimensions) {
  const bool here = std::ranges::all_of(parameters, [](const torch::Tensor& parameter) {
    const auto type = parameter.scalar_type();
    return parameter.is_cpu() && parameter.is_contiguous() &&
           (type == torch::kFloat32 || type == torch::kFloat64);
  });
  const auto make = here ? make_adam_like<Here, Options> : make_adam_like<Elsewhere, Options>;
  return make(config, std::move(parameters), dimensions);
}

template <typename Made, typename Options>
MadeOptimizer make_cpu_adam(const job::JobConfig& job, Parameters parameters,
                            const Dimensions& dimensions) {
  auto made = make_adam_like<Made, Options>(job.train, std::move(parameters), dimensions);
  if (job.zero.offload_optimizer == "disk") {
    static_cast<Made&>(*made).keep_on_disk(job.zero.offload_path);
  }
  return made;
}

MadeOptimizer make_sgd(const job::TrainConfig& config, Parameters parameters,
                       const Dimensions& dimensions) {
  return make_with<FusedSgd>(config, std::move(parameters), dimensions,
                             torch::optim::SGDOptions(full_rate(config))
                                 .momentum(config.momentum)
                                 .weight_decay(config.weight_decay));
}

MadeOptimizer make_lars(const job::TrainConfig& config, Parameters parameters,
                        const Dimensions& dimensions) {
  return make_with<Lars>(config, std::move(parameters), dimensions,
                         LarsOptions(full_rate(config))
                             .momentum(config.momentum)
                             .weight_decay(config.weight_decay)
                             .trust_coefficient(config.trust_coefficient));
}

struct OptimizerEntry {
  std::string_view name;
  MadeOptimizer (*make)(const job::TrainConfig&, Parameters, const Dimensions&);
  bool whole_tensors;
};

constexpr OptimizerEntry kOptimizers[] = {
    {"sgd", make_sgd, false},
    {"adam", make_adam<CpuAdam, FusedAdam, torch::optim::AdamOptions>, false},
    {"adamw", make_adam<CpuAdamW, FusedAdamW, torch::optim::AdamWOptions>, false},
    {"lars", make_lars, true},
    {"lamb", make_adam_like<Lamb, LambOptions>, true},
};

const OptimizerEntry& find_optimizer(const job::TrainConfig& config) {
  for (const auto& entry : kOptimizers) {
    if (entry.name == config.optimizer) return entry;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("train.optimizer is '{}'; known: sgd, adam, adamw, lars, lamb",
                          config.optimizer));
}

/// How far `done` is towards `total`, from 0 to 1.
double progress(std::int64_t done, std::int64_t total) {
  if (done >= total) return 1;
  return done <= 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
}

/// The part of the way from warmup_from to the full rate, `done` steps after it began.
double grown(const job::TrainConfig& config, std::int64_t done) {
  if (config.warmup == "linear") return progress(done, config.warmup_steps);
  if (config.warmup_steps < 2) return done > 0 ? 1 : 0;  // ln 1 is 0
  const auto steps = static_cast<double>(config.warmup_steps);
  return std::min(1.0, std::log1p(static_cast<double>(done)) / std::log(steps));
}

}  // namespace

MadeOptimizer make_optimizer(const job::TrainConfig& config, Parameters parameters,
                             const Dimensions& dimensions) {
  return find_optimizer(config).make(config, std::move(parameters), dimensions);
}

MadeOptimizer make_shard_optimizer(const job::JobConfig& job, Parameters parameters,
                                   const Dimensions& dimensions) {
  const auto& place = job.zero.offload_optimizer;
  const bool here = std::ranges::all_of(
      parameters, [](const torch::Tensor& parameter) { return parameter.is_cpu(); });
  if ((here || place != "none") && job.train.optimizer == "adamw") {
    return make_cpu_adam<CpuAdamW, torch::optim::AdamWOptions>(job, std::move(parameters),
                                                               dimensions);
  }
  if ((here || place != "none") && job.train.optimizer == "adam") {
    return make_cpu_adam<CpuAdam, torch::optim::AdamOptions>(job, std::move(parameters),
                                                             dimensions);
  }
  return make_optimizer(job.train, std::move(parameters), dimensions);
}

bool needs_whole_tensors(const job::TrainConfig& config) {
  return find_optimizer(config).whole_tensors || config.decay_on == "matrices";
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

double full_rate(const job::TrainConfig& config) {
  if (config.base_batch == 0) return config.learning_rate;
  return config.learning_rate * static_cast<double>(config.global_batch) /
         static_cast<double>(config.base_batch);
}

double learning_rate_at(const job::TrainConfig& config, std::int64_t step, std::int64_t job_steps) {
  const double full = full_rate(config);
  const std::int64_t warmup = config.warmup_steps;
  const std::int64_t done = std::max<std::int64_t>(0, step - config.warmup_lag);
  if (done < warmup) {
    return config.warmup_from + (full - config.warmup_from) * grown(config, done);
  }
  const std::int64_t decay = (config.decay_steps > 0 ? config.decay_steps : job_steps) - warmup;
  const double left = 1 - config.min_learning_rate_ratio;
  if (config.schedule == "linear") return full * (1 - left * progress(done - warmup, decay));
  if (config.schedule != "cosine") return full;
  const double angle = std::numbers::pi * progress(step - 1 - warmup, decay);
  return full * (config.min_learning_rate_ratio + left / 2 * (1 + std::cos(angle)));
}

}  // namespace bimetal::optim
