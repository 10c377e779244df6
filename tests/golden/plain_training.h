#pragma once
// One device that computes each batch whole, by nothing but libtorch: what every strategy is
// compared with.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/optim/clip.h"
#include "bimetal/task/task.h"
#include "golden/tasks.h"

namespace bimetal::golden {

using OptimizerOf =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

/// Changes parameters before a gradient is computed with them.
using Rounding = std::function<void(const std::vector<torch::Tensor>&)>;

struct PlainTraining {
  OptimizerOf optimizer;
  int steps = 0;
  std::uint64_t from = seed + 100;  ///< what the parameters are drawn from
  torch::ScalarType dtype = torch::kFloat64;
  optim::GradientLimits limits = {};
  std::size_t delay = 0;  ///< each gradient is that of the parameters of so many steps ago
  Rounding round = {};    ///< of a copy, for the gradient alone
};

struct TrainingResult {
  /// At the end, followed by the model's buffers; of many ranks all are bit-equal.
  std::vector<torch::Tensor> parameters;
  std::vector<double> losses;  ///< of each step: the mean over its global batch or its tokens
};

/// In batches of global_batch, reshuffled each epoch.
TrainingResult train_plainly(const task::Task& task, const PlainTraining& how);

/// Over samples by number, in an epoch, or over their tokens.
torch::Tensor mean_loss(const task::Task& task, const task::Model& model, std::int64_t epoch,
                        std::span<const std::int64_t> samples);

/// The loss of all samples, with these parameters.
double loss_with(const std::vector<torch::Tensor>& parameters, const task::Task& task);

/// Within a tensor, relative to the largest value of `expected`'s.
double largest_difference(const std::vector<torch::Tensor>& found,
                          const std::vector<torch::Tensor>& expected);

}  // namespace bimetal::golden
