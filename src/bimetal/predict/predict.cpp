#include "bimetal/predict/predict.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/device/device.h"

namespace bimetal::predict {

PredictionModel::PredictionModel(const checkpoint::ModelDescription& description,
                                 const device::Place& place, double speed, WeightsSource& weights)
    : description_(description), place_(place), speed_(speed), weights_(weights) {
  if (description_.language) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("'{}' is a language model, and predictions are served of images alone: "
                            "evaluate it, or go on with its text by bimetal generate",
                            description_.name));
  }
}

serving::ModelFacts PredictionModel::facts() const {
  serving::ModelFacts facts;
  facts.release = std::string(release());
  facts.model = description_.name;
  facts.channels = description_.channels;
  facts.height = description_.height;
  facts.width = description_.width;
  facts.classes = description_.classes;
  facts.mean = description_.mean;
  facts.stddev = description_.stddev;
  facts.dtype = description_.dtype == "float64" ? comm::DType::float64 : comm::DType::float32;
  return facts;
}

/// A part of a batch as the model takes it, on the CPU.
torch::Tensor PredictionModel::inputs_of(const serving::Samples& samples) const {
  const std::vector<std::int64_t> shape = {samples.count, description_.channels,
                                           description_.height, description_.width};
  auto* bytes = const_cast<std::byte*>(samples.values.data());  // from_blob only looks at them
  if (samples.dtype == comm::DType::uint8) {
    return data::normalised(torch::from_blob(bytes, shape, torch::kUInt8), description_.mean,
                            description_.stddev, place_.dtype);
  }
  const bool wide = samples.dtype == comm::DType::float64;
  return torch::from_blob(bytes, shape, wide ? torch::kFloat64 : torch::kFloat32).to(place_.dtype);
}

serving::WeightsVersion PredictionModel::answer(std::span<const serving::Samples> parts,
                                                std::span<double> logits) {
  const torch::NoGradGuard no_grad;
  const auto weights = weights_.newest();  // from a disk, or from other processes
  const Stopwatch watch;
  std::vector<torch::Tensor> inputs;
  for (const auto& part : parts) inputs.push_back(inputs_of(part));
  const auto x = (inputs.size() == 1 ? inputs.front() : torch::cat(inputs)).to(place_.device);
  const auto outputs = task::run_units(weights.model, {x});
  const auto out = outputs.front().to(torch::kCPU, torch::kFloat64).contiguous();
  if (static_cast<std::size_t>(out.numel()) != logits.size()) {
    throw Error(ErrorCode::Internal, "the model gives another number of classes than it says");
  }
  std::memcpy(logits.data(), out.const_data_ptr(), logits.size_bytes());
  device::pause_for_speed(speed_, watch.seconds());
  return weights.version;
}

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
