#include "bimetal/predict/predict.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"

namespace bimetal::predict {
namespace {

constexpr std::int64_t kSamplesAtOnce = 250;

}  // namespace

torch::Tensor predict(const task::Task& task, const task::Model& model,
                      const EvaluateOptions& options) {
  const auto set = task.evaluation();
  const torch::NoGradGuard no_grad;
  model.eval();
  std::vector<torch::Tensor> parts;
  for (std::int64_t begin = 0; begin < set->size(); begin += kSamplesAtOnce) {
    const Stopwatch watch;
    const auto end = std::min(begin + kSamplesAtOnce, set->size());
    const auto batch = task::to_device(task::batch_of(*set, begin, end), options.device);
    const auto outputs = task::run_units(model, task.inputs(batch));
    parts.push_back(torch::softmax(outputs.front().to(torch::kCPU), 1, torch::kFloat64));
    device::pause_for_speed(options.speed, watch.seconds());
  }
  return torch::cat(parts);
}

torch::Tensor labels_of(const task::Task& task) {
  const auto set = task.evaluation();
  std::vector<torch::Tensor> parts;
  for (std::int64_t begin = 0; begin < set->size(); begin += kSamplesAtOnce) {
    const auto end = std::min(begin + kSamplesAtOnce, set->size());
    parts.push_back(task::batch_of(*set, begin, end).back());
  }
  return torch::cat(parts);
}

progress::Evaluation score(const torch::Tensor& probabilities, const torch::Tensor& labels) {
  const auto correct = probabilities.argmax(1).eq(labels).sum().item<double>();
  const auto of_labels = probabilities.gather(1, labels.unsqueeze(1));
  // A probability that has become 0 by rounding is not infinitely wrong.
  const auto least = std::numeric_limits<double>::min();
  const auto loss = -of_labels.clamp_min(least).log().mean().item<double>();
  return {.loss = loss, .metrics = {{"accuracy", correct / static_cast<double>(labels.size(0))}}};
}

}  // namespace bimetal::predict
