#include "bimetal/train/predict.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"

namespace bimetal::train {
namespace {

constexpr std::int64_t kSamplesAtOnce = 250;

}  // namespace

torch::Tensor predict(models::Classifier& model, const data::ImageDataset& set,
                      const EvaluateOptions& options) {
  const torch::NoGradGuard no_grad;
  model.eval();
  std::vector<torch::Tensor> parts;
  for (std::int64_t begin = 0; begin < set.size(); begin += kSamplesAtOnce) {
    const Stopwatch watch;
    const auto indices = torch::arange(begin, std::min(begin + kSamplesAtOnce, set.size()));
    const auto batch = data::make_batch(set, indices, options.dtype);
    const auto logits = model.forward(batch.x.to(options.device)).to(torch::kCPU);
    parts.push_back(torch::softmax(logits, 1, torch::kFloat64));
    device::pause_for_speed(options.speed, watch.seconds());
  }
  return torch::cat(parts);
}

Evaluation score(const torch::Tensor& probabilities, const torch::Tensor& labels) {
  const auto correct = probabilities.argmax(1).eq(labels).sum().item<double>();
  const auto of_labels = probabilities.gather(1, labels.unsqueeze(1));
  // A probability that has become 0 by rounding is not infinitely wrong.
  const auto least = std::numeric_limits<double>::min();
  const auto loss = -of_labels.clamp_min(least).log().mean().item<double>();
  return {.accuracy = correct / static_cast<double>(labels.size(0)), .loss = loss};
}

}  // namespace bimetal::train
