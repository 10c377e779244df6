#include "bimetal/predict/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "bimetal/checkpoint/starting_point.h"
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

/// Numbers 0…255 of what was normalised for the model.
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
