#pragma once
// Batch normalisation (Ioffe and Szegedy 2015) over groups of samples of a stated size, which
// follow the step's order and not the rank that computes them. So any split of a batch into whole
// groups computes the same. The statistics of a step's groups go into the running statistics once,
// at its end.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

namespace bimetal::task {

/// Running statistics of one normalisation, and the statistics to be added to them.
struct BatchStatistics {
  torch::Tensor mean, variance;  ///< [channels], running: buffers of the model
  /// [2 × channels + 1] of the groups of this step, on this rank or, once summed, on all: means and
  /// unbiased variances, each times the group's samples; and the number of samples.
  torch::Tensor sums;
  double momentum = 0.1;   ///< the part of a step's statistics in the new running ones
  std::int64_t group = 1;  ///< samples
};

/// The running statistics after a step: `sums` of all its samples move them, and become 0. Without
/// samples they stay, and if `skipped`, where defined, is not 0: one number where they are.
void merge(const BatchStatistics& statistics, const torch::Tensor& skipped = {});

/// Over [b, channels, …]: in training samples 0 … group − 1 with each other, the next ones, and so
/// on; the last group may be smaller. In evaluation by the running statistics. Tensors are called
/// weight, bias, running_mean and running_var, as in torch.nn.BatchNorm2d, which this is where a
/// step is one group. Use from one thread.
class GroupedBatchNormImpl final : public torch::nn::Module {
 public:
  /// Weight 1, bias 0, running mean 0 and variance 1.
  GroupedBatchNormImpl(std::int64_t channels, std::int64_t group);

  torch::Tensor forward(const torch::Tensor& x);  ///< [b, channels, …] as it came

  const BatchStatistics& statistics() const noexcept { return statistics_; }  ///< of this module

  torch::Tensor weight, bias;  ///< [channels]

 private:
  torch::Tensor normalise_group(const torch::Tensor& x);

  BatchStatistics statistics_;
};
TORCH_MODULE(GroupedBatchNorm);

}  // namespace bimetal::task
