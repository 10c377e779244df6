#include "bimetal/train/optimizers.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::train {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainConfig& config,
                                                        std::vector<torch::Tensor> parameters) {
  namespace optim = torch::optim;
  if (config.optimizer == "sgd") {
    return std::make_unique<optim::SGD>(std::move(parameters),
                                        optim::SGDOptions(config.learning_rate)
                                            .momentum(config.momentum)
                                            .weight_decay(config.weight_decay));
  }
  if (config.optimizer == "adam") {
    return std::make_unique<optim::Adam>(
        std::move(parameters),
        optim::AdamOptions(config.learning_rate).weight_decay(config.weight_decay));
  }
  if (config.optimizer == "adamw") {
    return std::make_unique<optim::AdamW>(
        std::move(parameters),
        optim::AdamWOptions(config.learning_rate).weight_decay(config.weight_decay));
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("train.optimizer is '{}'; known: sgd, adam, adamw", config.optimizer));
}

}  // namespace bimetal::train
