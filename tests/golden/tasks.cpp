#include "golden/tasks.h"

#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <random>
#include <vector>

#include "bimetal/models/language/language_model.h"
#include "bimetal/models/registry.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::golden {
namespace {

constexpr models::ImageShape shape{.channels = 1, .height = 8, .width = 8, .classes = 10};
constexpr std::int64_t vocabulary = 12, width = 16, longest = 40;
constexpr std::int64_t no_target = -100;

class Images final : public task::Dataset {
 public:
  explicit Images(torch::ScalarType dtype) {
    torch::manual_seed(seed);
    auto pixels = torch::randn({sample_count, shape.height * shape.width}, torch::kFloat64);
    labels_ = torch::randint(shape.classes, {sample_count}, torch::kInt64);
    const auto bright = labels_.unsqueeze(1) * 6 + torch::arange(6);
    pixels.scatter_add_(1, bright, torch::full({sample_count, 6}, 2.0, torch::kFloat64));
    images_ = pixels.reshape({sample_count, 1, shape.height, shape.width}).to(dtype);
  }

  std::int64_t size() const override { return sample_count; }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    const auto chosen =
        torch::tensor(c10::ArrayRef<std::int64_t>(samples.data(), samples.size()), torch::kInt64);
    return {images_.index_select(0, chosen), labels_.index_select(0, chosen)};
  }

 private:
  torch::Tensor images_, labels_;
};

class Sequences final : public task::Dataset {
 public:
  Sequences() {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < sample_count; ++i) {
      // Mostly short, as texts are: the square of an even draw.
      const auto drawn = static_cast<std::int64_t>(random() % 39);
      auto& tokens = sequences_.emplace_back(static_cast<std::size_t>(2 + drawn * drawn / 39));
      auto token = random() % vocabulary;
      for (auto& next : tokens) {
        next = static_cast<std::int64_t>(token);
        token = (5 * token + 1 + random() % 3) % vocabulary;
      }
    }
  }

  std::int64_t size() const override { return sample_count; }
  std::int64_t weight(std::int64_t sample) const override {
    return static_cast<std::int64_t>(sequences_.at(static_cast<std::size_t>(sample)).size()) - 1;
  }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    std::int64_t length = 1;
    for (const auto sample : samples) length = std::max(length, weight(sample));
    const auto count = static_cast<std::int64_t>(samples.size());
    auto inputs = torch::zeros({count, length}, torch::kInt64);
    auto targets = torch::full({count, length}, no_target, torch::kInt64);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto sample = samples[static_cast<std::size_t>(i)];
      const auto tokens = torch::tensor(sequences_.at(static_cast<std::size_t>(sample)));
      const auto last = weight(sample);
      inputs[i].narrow(0, 0, last).copy_(tokens.narrow(0, 0, last));
      targets[i].narrow(0, 0, last).copy_(tokens.narrow(0, 1, last));
    }
    return {inputs, targets};
  }

 private:
  std::vector<std::vector<std::int64_t>> sequences_;
};

/// Over the tokens that have a target.
torch::Tensor token_loss_sum(const task::Values& outputs, const task::Values& batch) {
  return torch::cross_entropy_loss(outputs.front().flatten(0, 1), batch.back().flatten(), {},
                                   at::Reduction::Sum, no_target);
}

}  // namespace

ImageTask::ImageTask(torch::ScalarType dtype, std::string model, std::int64_t hidden,
                     std::int64_t norm_group)
    : model_(std::move(model)), hidden_(hidden), norm_group_(norm_group), data_(std::make_shared<Images>(dtype)) {}

task::Model ImageTask::make_model() const {
  return models::make_model(model_, shape, hidden_, norm_group_)->units();
}

torch::Tensor ImageTask::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  return torch::cross_entropy_loss(outputs.front(), batch.back(), {}, at::Reduction::Sum);
}

TokenTask::TokenTask() : data_(std::make_shared<Sequences>()) {}

task::Model TokenTask::make_model() const {
  const auto embedding = torch::nn::Embedding(vocabulary, width).ptr();
  const auto hidden = torch::nn::Linear(width, width).ptr();
  const auto weight = embedding->weight;
  const auto bias = torch::zeros({vocabulary}, torch::requires_grad());
  return {
      {task::make_unit("embedding", embedding,
                       [=](const torch::Tensor& ids) { return embedding->forward(ids); }),
       task::make_unit("hidden", hidden,
                       [=](const torch::Tensor& x) { return x + torch::tanh(hidden->forward(x)); }),
       {.name = "head",
        .parameters = {{"head.weight", weight}, {"head.bias", bias}},
        .forward = [=](const task::Values& inputs) -> task::Values {
          return {torch::linear(inputs.front(), weight, bias)};
        }}}};
}

torch::Tensor TokenTask::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  return token_loss_sum(outputs, batch);
}

LanguageTask::LanguageTask(const std::string& model, double dropout, std::int64_t heads,
                           std::int64_t blocks)
    : config_(models::resized(models::language_preset(model),
                              {.layers = blocks,
                               .width = width,
                               .heads = heads,
                               .kv_heads = model == "gpt2" ? heads : heads / 2,
                               .hidden = 2 * width,
                               .context = longest,
                               .vocabulary = vocabulary})),
      data_(std::make_shared<Sequences>()) {
  config_.dropout = dropout;
}

task::Model LanguageTask::make_model() const {
  return models::make_language_model(config_);
}

torch::Tensor LanguageTask::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  return task::cross_entropy_sum(outputs.front().flatten(0, 1), batch.back().flatten(), vocabulary,
                                 no_target);
}

task::Model make_start(const task::Task& task, std::uint64_t from, torch::ScalarType dtype) {
  torch::manual_seed(from);
  auto model = task.make_model();
  model.to(torch::kCPU, dtype);
  return model;
}

}  // namespace bimetal::golden
