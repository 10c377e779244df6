#include "bimetal/predict/predict.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/device/device.h"
#include "bimetal/predict/generate.h"

namespace bimetal::predict {
namespace {

constexpr std::int64_t kMostPrompt = 32, kDrawn = 48;  // tokens
constexpr double kTemperature = 0.8;
constexpr std::int64_t kMostNamed = 3;             // classes
constexpr std::int64_t kMostPixels = 3 * 64 * 64;  // that a page draws

std::string percent(double part) {
  return fmt::format("{:.0f} %", 100 * part);
}

/// Numbers 0…255 of an image that was normalised for the model.
void put_pixels(const torch::Tensor& image, const checkpoint::ModelDescription& description,
                progress::Sample& sample) {
  if (image.dim() != 3 || image.numel() > kMostPixels || image.size(0) != description.channels) {
    return;
  }
  const auto by_channel = [&](const std::vector<double>& values) {
    return torch::tensor(values, torch::kFloat64).view({-1, 1, 1});
  };
  const auto pixels = (image.to(torch::kCPU, torch::kFloat64) * by_channel(description.stddev) +
                       by_channel(description.mean))
                          .mul(255)
                          .round()
                          .clamp(0, 255)
                          .to(torch::kUInt8)
                          .contiguous();
  const auto* data = pixels.data_ptr<std::uint8_t>();
  sample.shape = pixels.sizes().vec();
  sample.pixels.assign(data, data + pixels.numel());
}

/// "label 3, taken for 3 (97 %), 8 (2 %)". Nothing where the outputs are no logits of classes.
std::string classes_of(const task::Values& outputs, const task::Values& batch) {
  const auto& target = batch.back();
  const bool classes = outputs.front().dim() == 2 && outputs.front().size(1) > 1 &&
                       target.numel() == 1 && !target.is_floating_point();
  if (!classes) return "";
  const auto likely = outputs.front()[0].to(torch::kCPU, torch::kFloat64).softmax(0);
  const auto [parts, order] = likely.topk(std::min(kMostNamed, likely.size(0)));
  auto text = fmt::format("label {}, taken for ", target.item<std::int64_t>());
  for (std::int64_t i = 0; i < parts.size(0); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", order[i].item<std::int64_t>(),
                        percent(parts[i].item<double>()));
  }
  return text;
}

progress::Sample go_on_with(const torch::Tensor& tokens, const task::Model& model,
                            const torch::Device& device,
                            const models::LanguageModelConfig& language, std::uint64_t draw) {
  const auto row = tokens[0].to(torch::kCPU, torch::kInt64).contiguous();
  const auto given = std::clamp<std::int64_t>(row.size(0) / 2, 1, kMostPrompt);
  const auto* first = row.data_ptr<std::int64_t>();
  progress::Sample sample{.vocabulary = language.vocabulary};
  sample.prompt.assign(first, first + given);
  sample.tokens = generate(foretold_by(model, device), language.context, sample.prompt,
                           {.tokens = kDrawn, .temperature = kTemperature, .seed = draw});
  return sample;
}

/// In evaluation mode while it lives, and with the random numbers as they were afterwards.
class Looking {
 public:
  explicit Looking(const task::Model& model) : model_(model), random_(checkpoint::random_state()) {
    model_.eval();
  }
  ~Looking() {
    model_.train();
    checkpoint::set_random_state(random_);
  }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;

 private:
  const task::Model& model_;
  const std::vector<std::uint8_t> random_;
};

}  // namespace

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

progress::Sample look_at_sample(const task::Task& task,
                                const checkpoint::ModelDescription& description,
                                const task::Dataset& data, const task::Model& model,
                                const torch::Device& device, std::uint64_t draw) {
  const auto number = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(data.size()));
  const torch::NoGradGuard no_grad;
  const Looking looking(model);
  const auto batch = task::to_device(task::batch_of(data, number, number + 1), device);
  const auto which = fmt::format("sample {}", number);
  if (description.language) {
    auto sample =
        go_on_with(task.inputs(batch).front(), model, device, *description.language, draw);
    sample.text = which;
    return sample;
  }
  const auto outputs = task::run_units(model, task.inputs(batch));
  progress::Sample sample;
  const auto classes = classes_of(outputs, batch);
  const auto weight = static_cast<double>(data.weight(number));
  sample.text = fmt::format("{}: {}{}loss {:.4f}", which, classes, classes.empty() ? "" : ", ",
                            task.loss_sum(outputs, batch).item<double>() / weight);
  put_pixels(batch.front()[0], description, sample);
  return sample;
}

}  // namespace bimetal::predict
