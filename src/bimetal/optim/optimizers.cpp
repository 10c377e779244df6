#include "bimetal/optim/optimizers.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <string_view>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/optim/lamb.h"
#include "bimetal/optim/lars.h"

namespace bimetal::optim {
namespace {

using Parameters = std::vector<torch::Tensor>;
using MadeOptimizer = std::unique_ptr<torch::optim::Optimizer>;

/// Of Adam, AdamW and LAMB; each has an epsilon of its own unless the job gives one.
template <typename Made, typename Options>
MadeOptimizer make_adam_like(const job::TrainConfig& config, Parameters parameters) {
  Options options(config.learning_rate);
  options.betas({config.beta1, config.beta2}).weight_decay(config.weight_decay);
  if (config.epsilon > 0) options.eps(config.epsilon);
  return std::make_unique<Made>(std::move(parameters), options);
}

MadeOptimizer make_sgd(const job::TrainConfig& config, Parameters parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(config.learning_rate)
                                                 .momentum(config.momentum)
                                                 .weight_decay(config.weight_decay));
}

MadeOptimizer make_lars(const job::TrainConfig& config, Parameters parameters) {
  return std::make_unique<Lars>(std::move(parameters),
                                LarsOptions(config.learning_rate)
                                    .momentum(config.momentum)
                                    .weight_decay(config.weight_decay)
                                    .trust_coefficient(config.trust_coefficient));
}

struct OptimizerEntry {
  std::string_view name;
  MadeOptimizer (*make)(const job::TrainConfig&, Parameters);
  bool whole_tensors;
};

constexpr OptimizerEntry kOptimizers[] = {
    {"sgd", make_sgd, false},
    {"adam", make_adam_like<torch::optim::Adam, torch::optim::AdamOptions>, false},
    {"adamw", make_adam_like<torch::optim::AdamW, torch::optim::AdamWOptions>, false},
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

}  // namespace

MadeOptimizer make_optimizer(const job::TrainConfig& config, Parameters parameters) {
  return find_optimizer(config).make(config, std::move(parameters));
}

bool needs_whole_tensors(const job::TrainConfig& config) {
  return find_optimizer(config).whole_tensors;
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace bimetal::optim
