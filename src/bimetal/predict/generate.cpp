#include "bimetal/predict/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bimetal/base/error.h"

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

}  // namespace

Continuation::Continuation(task::Model model, const torch::Device& device, std::int64_t context,
                           std::vector<std::int64_t> prompt, const Sampling& sampling)
    : model_(std::move(model)),
      device_(device),
      context_(context),
      sampling_(sampling),
      generator_(at::make_generator<at::CPUGeneratorImpl>(sampling.seed)),
      tokens_(std::move(prompt)),
      past_(std::in_place, context) {
  check(sampling, tokens_);
}

std::int64_t Continuation::next() {
  const torch::NoGradGuard no_grad;
  tokens_.push_back(draw(logits(), sampling_, generator_));
  return tokens_.back();
}

/// Of the token after those that there are, [vocabulary].
torch::Tensor Continuation::logits() {
  const auto count = static_cast<std::int64_t>(tokens_.size());
  if (past_ && count <= context_) {
    const auto added = count - past_->length();
    const task::PastScope going_on(*past_);
    auto foretold = last_logits(added);
    if (!past_->advance(added)) past_.reset();
    return foretold;
  }
  past_.reset();
  return last_logits(context_);
}

/// Given the last `count` tokens.
torch::Tensor Continuation::last_logits(std::int64_t count) const {
  const auto outputs = task::run_units(model_, {last_of(tokens_, count, device_)});
  return outputs.at(0).select(1, -1).squeeze(0);
}

std::vector<std::int64_t> generate(const task::Model& model, const torch::Device& device,
                                   std::int64_t context, const std::vector<std::int64_t>& prompt,
                                   const Sampling& sampling,
                                   const std::function<void(std::int64_t token)>& tell) {
  Continuation text(model, device, context, prompt, sampling);
  std::vector<std::int64_t> tokens;
  while (static_cast<std::int64_t>(tokens.size()) < sampling.tokens) {
    tokens.push_back(text.next());
    if (tell) tell(tokens.back());
  }
  return tokens;
}

}  // namespace bimetal::predict
