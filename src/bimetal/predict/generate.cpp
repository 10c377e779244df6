#include "bimetal/predict/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/task/past.h"

namespace bimetal::predict {
namespace {

void check(const Sampling& sampling, const std::vector<std::int64_t>& prompt) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::InvalidArgument, why); };
  if (prompt.empty()) refuse("the prompt is empty: a model needs a token to go on from");
  if (sampling.tokens < 0) refuse(fmt::format("{} tokens cannot be drawn", sampling.tokens));
  if (sampling.top_k < 0)
    refuse(fmt::format("top-k is at least 1, or 0 for all tokens, not {}", sampling.top_k));
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature)) {
    refuse(fmt::format("the temperature is at least 0, not {}", sampling.temperature));
  }
}

/// Of one token's logits [vocabulary].
std::int64_t draw(torch::Tensor logits, const Sampling& sampling, torch::Generator& generator) {
  logits = logits.to(torch::kCPU).to(torch::kFloat64);  // Metal has no float64
  if (!torch::isfinite(logits).all().item<bool>()) {
    throw Error(ErrorCode::NotFinite,
                "the model foretells NaN or infinity: its weights are of no use (a learning rate "
                "that was too high?)");
  }
  if (sampling.temperature == 0) return logits.argmax().item<std::int64_t>();
  logits = logits / sampling.temperature;
  if (sampling.top_k > 0 && sampling.top_k < logits.numel()) {
    const auto least = std::get<0>(logits.topk(sampling.top_k)).min();
    logits = logits.masked_fill(logits < least, -std::numeric_limits<double>::infinity());
  }
  return torch::multinomial(torch::softmax(logits, 0), 1, false, generator).item<std::int64_t>();
}

torch::Tensor last_of(const std::vector<std::int64_t>& tokens, std::int64_t context,
                      const torch::Device& device) {
  const auto count = std::min(context, static_cast<std::int64_t>(tokens.size()));
  auto window = torch::empty({1, count}, torch::kInt64);
  std::copy(tokens.end() - count, tokens.end(), window.mutable_data_ptr<std::int64_t>());
  return window.to(device);
}

/// What the model foretells after `tokens`, [vocabulary], pass by pass.
class Foretelling {
 public:
  Foretelling(const task::Model& model, const torch::Device& device, std::int64_t context)
      : model_(model), device_(device), context_(context), past_(std::in_place, context) {}

  torch::Tensor after(const std::vector<std::int64_t>& tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (past_ && count <= context_) {
      const auto added = count - past_->length();
      task::PastScope going_on(*past_);
      const auto logits = last_logits(tokens, added);
      if (!past_->advance(added)) past_.reset();
      return logits;
    }
    past_.reset();
    return last_logits(tokens, context_);
  }

 private:
  torch::Tensor last_logits(const std::vector<std::int64_t>& tokens, std::int64_t count) const {
    const auto outputs = task::run_units(model_, {last_of(tokens, count, device_)});
    return outputs.at(0).select(1, -1).squeeze(0);
  }

  const task::Model& model_;
  const torch::Device device_;
  const std::int64_t context_;
  std::optional<task::Past> past_;  ///< none: the model has none, or its context is full
};

}  // namespace

std::vector<std::int64_t> generate(const task::Model& model, const torch::Device& device,
                                   std::int64_t context, const std::vector<std::int64_t>& prompt,
                                   const Sampling& sampling,
                                   const std::function<void(std::int64_t token)>& tell) {
  check(sampling, prompt);
  const torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(sampling.seed);
  auto tokens = prompt;
  Foretelling foretold(model, device, context);
  for (std::int64_t i = 0; i < sampling.tokens; ++i) {
    tokens.push_back(draw(foretold.after(tokens), sampling, generator));
    if (tell) tell(tokens.back());
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

}  // namespace bimetal::predict
