#include "golden/plain_training.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn/utils.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "bimetal/data/sampler.h"
#include "bimetal/task/dropout.h"

namespace bimetal::golden {
namespace {

void copy_values(const std::vector<torch::Tensor>& from, const std::vector<torch::Tensor>& to) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) {
    auto target = to[i];
    target.copy_(from[i].reshape(target.sizes()));
  }
}

std::vector<torch::Tensor> values_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> values;
  for (const auto& parameter : parameters) values.push_back(parameter.detach().clone());
  return values;
}

void limit(const std::vector<torch::Tensor>& parameters, const optim::GradientLimits& limits) {
  if (limits.value > 0) torch::nn::utils::clip_grad_value_(parameters, limits.value);
  if (limits.norm > 0) torch::nn::utils::clip_grad_norm_(parameters, limits.norm);
}

}  // namespace

torch::Tensor mean_loss(const task::Task& task, const task::Model& model, std::int64_t epoch,
                        std::span<const std::int64_t> samples) {
  const task::DrawScope scope(task::Draws::of(seed, epoch, samples));
  const auto batch = task.training()->batch(samples);
  std::int64_t weight = 0;
  for (const auto sample : samples) weight += task.training()->weight(sample);
  return task.loss_sum(task::run_units(model, task.inputs(batch)), batch) / weight;
}

TrainingResult train_plainly(const task::Task& task, const PlainTraining& how) {
  const auto model = make_start(task, how.from, how.dtype);
  const auto seen = make_start(task, how.from, how.dtype);  // what gradients are computed with
  const auto parameters = model.parameters(), copies = seen.parameters();
  const auto optimizer = how.optimizer(parameters);
  std::deque<std::vector<torch::Tensor>> versions;
  data::EpochSampler sampler(sample_count, seed);
  TrainingResult result;
  for (int step = 0; step < how.steps; ++step) {
    const auto samples = sampler.next(std::vector<std::int64_t>{global_batch});
    versions.push_back(values_of(parameters));
    if (versions.size() > how.delay + 1) versions.pop_front();
    copy_values(versions.front(), copies);
    if (how.round) how.round(copies);
    for (auto copy : copies) copy.mutable_grad() = torch::Tensor();
    const auto loss = mean_loss(task, seen, samples.epoch, samples.indices);
    loss.backward();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto parameter = parameters[i];
      parameter.mutable_grad() = copies[i].grad();
    }
    limit(parameters, how.limits);
    optimizer->step();
    for (const auto& statistics : seen.statistics()) task::merge(statistics);
    result.losses.push_back(loss.item<double>());
  }
  result.parameters = parameters;
  for (const auto& buffer : seen.named_buffers()) result.parameters.push_back(buffer.tensor);
  return result;
}

double loss_with(const std::vector<torch::Tensor>& parameters, const task::Task& task) {
  const auto model = make_start(task, seed, parameters.front().scalar_type());
  copy_values(parameters, model.parameters());
  std::vector<std::int64_t> everything(sample_count);
  std::iota(everything.begin(), everything.end(), 0);
  const torch::NoGradGuard no_grad;
  return mean_loss(task, model, 0, everything).item<double>();
}

double largest_difference(const std::vector<torch::Tensor>& found,
                          const std::vector<torch::Tensor>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    const auto scale = expected[i].abs().max().item<double>();
    const auto difference = (found[i].flatten() - expected[i].flatten()).abs().max();
    largest = std::max(largest, difference.item<double>() / scale);
  }
  return largest;
}

}  // namespace bimetal::golden
