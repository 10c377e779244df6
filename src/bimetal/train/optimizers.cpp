#include "bimetal/train/optimizers.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <string_view>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/train/lamb.h"
#include "bimetal/train/lars.h"

namespace bimetal::train {
namespace {

namespace optim = torch::optim;
using Parameters = std::vector<torch::Tensor>;
using MadeOptimizer = std::unique_ptr<optim::Optimizer>;

/// Of Adam, AdamW and LAMB; each has an epsilon of its own unless the job gives one.
template <typename Made, typename Options>
MadeOptimizer make_adam_like(const TrainConfig& config, Parameters parameters) {
  Options options(config.learning_rate);
  options.betas({config.beta1, config.beta2}).weight_decay(config.weight_decay);
  if (config.epsilon > 0) options.eps(config.epsilon);
  return std::make_unique<Made>(std::move(parameters), options);
}

MadeOptimizer make_sgd(const TrainConfig& config, Parameters parameters) {
  return std::make_unique<optim::SGD>(std::move(parameters),
                                      optim::SGDOptions(config.learning_rate)
                                          .momentum(config.momentum)
                                          .weight_decay(config.weight_decay));
}

MadeOptimizer make_lars(const TrainConfig& config, Parameters parameters) {
  return std::make_unique<Lars>(std::move(parameters),
                                LarsOptions(config.learning_rate)
                                    .momentum(config.momentum)
                                    .weight_decay(config.weight_decay)
                                    .trust_coefficient(config.trust_coefficient));
}

struct OptimizerEntry {
  std::string_view name;
  MadeOptimizer (*make)(const TrainConfig&, Parameters);
  bool whole_tensors;
};

constexpr OptimizerEntry kOptimizers[] = {
    {"sgd", make_sgd, false},
    {"adam", make_adam_like<optim::Adam, optim::AdamOptions>, false},
    {"adamw", make_adam_like<optim::AdamW, optim::AdamWOptions>, false},
    {"lars", make_lars, true},
    {"lamb", make_adam_like<Lamb, LambOptions>, true},
};

const OptimizerEntry& find_optimizer(const TrainConfig& config) {
  for (const auto& entry : kOptimizers) {
    if (entry.name == config.optimizer) return entry;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("train.optimizer is '{}'; known: sgd, adam, adamw, lars, lamb",
                          config.optimizer));
}

}  // namespace

MadeOptimizer make_optimizer(const TrainConfig& config, Parameters parameters) {
  return find_optimizer(config).make(config, std::move(parameters));
}

bool needs_whole_tensors(const TrainConfig& config) {
  return find_optimizer(config).whole_tensors;
}

void set_learning_rate(optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace bimetal::train
