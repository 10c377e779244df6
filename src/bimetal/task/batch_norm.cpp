#include "bimetal/task/batch_norm.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <vector>

namespace bimetal::task {
namespace {

constexpr double kEpsilon = 1e-5;  // torch's

}  // namespace

void merge(const BatchStatistics& statistics, const torch::Tensor& skipped) {
  const torch::NoGradGuard no_grad;
  auto sums = statistics.sums;
  const auto channels = statistics.mean.numel();
  // The host does not ask how many there are: without samples means are 0, and have no weight.
  const auto samples = sums[2 * channels];
  const auto means = sums / samples.clamp_min(1);
  const auto weight = (samples > 0).to(sums.scalar_type()) * statistics.momentum;
  // Chosen and not weighed: a value that is not finite times 0 is not 0.
  const auto move = [&](torch::Tensor running, const torch::Tensor& seen) {
    if (!skipped.defined()) {
      running.lerp_(seen, weight);
    } else {
      running.copy_(torch::where(skipped != 0, running, running.lerp(seen, weight)));
    }
  };
  move(statistics.mean, means.narrow(0, 0, channels));
  move(statistics.variance, means.narrow(0, channels, channels));
  sums.zero_();
}

GroupedBatchNormImpl::GroupedBatchNormImpl(std::int64_t channels, std::int64_t group)
    : weight(register_parameter("weight", torch::ones({channels}))),
      bias(register_parameter("bias", torch::zeros({channels}))),
      statistics_{.mean = register_buffer("running_mean", torch::zeros({channels})),
                  .variance = register_buffer("running_var", torch::ones({channels})),
                  .sums = torch::zeros({2 * channels + 1}),
                  .group = group} {}

torch::Tensor GroupedBatchNormImpl::forward(const torch::Tensor& x) {
  if (!is_training()) {
    return torch::batch_norm(x, weight, bias, statistics_.mean, statistics_.variance,
                             /*training=*/false, /*momentum=*/0, kEpsilon, /*cudnn_enabled=*/true);
  }
  std::vector<torch::Tensor> groups;
  for (std::int64_t begin = 0; begin < x.size(0); begin += statistics_.group) {
    const auto samples = std::min(statistics_.group, x.size(0) - begin);
    groups.push_back(normalise_group(x.narrow(0, begin, samples)));
  }
  return groups.size() == 1 ? groups.front() : torch::cat(groups);
}

/// As running statistics that forget everything, libtorch gives a group's own.
torch::Tensor GroupedBatchNormImpl::normalise_group(const torch::Tensor& x) {
  const auto channels = weight.numel();
  auto mean = torch::zeros_like(statistics_.mean), variance = torch::zeros_like(mean);
  auto normalised = torch::batch_norm(x, weight, bias, mean, variance, /*training=*/true,
                                      /*momentum=*/1, kEpsilon, /*cudnn_enabled=*/true);
  const bool one_value = x.numel() == channels;  // which has no variance
  if (!one_value) {
    const torch::NoGradGuard no_grad;
    const auto samples = static_cast<double>(x.size(0));
    auto sums = statistics_.sums;
    sums.narrow(0, 0, channels).add_(mean, samples);
    sums.narrow(0, channels, channels).add_(variance, samples);
    sums[2 * channels].add_(samples);
  }
  return normalised;
}

}  // namespace bimetal::task
