#include "bimetal/predict/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/device/device.h"

namespace bimetal::predict {
namespace {

class LanguageText final : public serving::Text {
 public:
  LanguageText(Continuation continuation, std::int64_t step, double speed)
      : continuation_(std::move(continuation)), step_(step), speed_(speed) {}

  std::int64_t next() override {
    const Stopwatch watch;
    const auto token = continuation_.next();
    device::pause_for_speed(speed_, watch.seconds());
    return token;
  }
  std::int64_t step() const override { return step_; }

 private:
  Continuation continuation_;
  const std::int64_t step_;
  const double speed_;
};

void check(const serving::TextRequest& wanted, std::int64_t vocabulary) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::InvalidArgument, why); };
  if (wanted.tokens < 1 || wanted.tokens > serving::kMostTokens) {
    refuse(fmt::format("a text goes on for 1 to {} tokens, not {}", serving::kMostTokens,
                       wanted.tokens));
  }
  for (const auto token : wanted.prompt) {
    if (token >= 0 && token < vocabulary) continue;
    refuse(fmt::format(
        "token {} is not in the model's vocabulary of {}: its tokenizer is another than the text's",
        token, vocabulary));
  }
}

}  // namespace

LanguageWriter::LanguageWriter(const checkpoint::ModelDescription& description,
                               const device::Place& place, double speed, WeightsSource& weights)
    : description_(description), place_(place), speed_(speed), weights_(weights) {
  if (!description_.language) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("'{}' is no language model", description_.name));
  }
}

serving::ModelFacts LanguageWriter::facts() const {
  serving::ModelFacts facts;
  facts.release = std::string(release());
  facts.model = description_.name;
  facts.classes = description_.language->vocabulary;
  facts.context = description_.language->context;
  facts.dtype = description_.dtype == "float64" ? comm::DType::float64 : comm::DType::float32;
  return facts;
}

std::unique_ptr<serving::Text> LanguageWriter::begin(const serving::TextRequest& wanted) {
  check(wanted, description_.language->vocabulary);
  auto weights = weights_.newest();
  return std::make_unique<LanguageText>(
      Continuation(foretold_by(std::move(weights.model), place_.device),
                   description_.language->context, wanted.prompt,
                   {.tokens = wanted.tokens,
                    .temperature = wanted.temperature,
                    .top_k = wanted.top_k,
                    .seed = wanted.seed}),
      weights.version.newest, speed_);
}

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

/// Draws a token from one position's logits [vocabulary].
std::int64_t draw(torch::Tensor logits, const Sampling& sampling, torch::Generator& generator) {
  logits = logits.to(torch::kCPU).to(torch::kFloat64);  // Metal has no float64
  if (!torch::isfinite(logits).all().item<bool>()) {
    throw Error(ErrorCode::NotFinite,
                "the model foretells NaN or infinity: its weights are of no use (a learning rate "
                "that was too high?)");
  }
  // By less than the smallest normal number division gives infinities and NaN.
  if (sampling.temperature < std::numeric_limits<double>::min()) {
    return logits.argmax().item<std::int64_t>();
  }
  logits = (logits - logits.max()) / sampling.temperature;  // the likeliest one's stays finite
  if (sampling.top_k > 0 && sampling.top_k < logits.numel()) {
    const auto least = std::get<0>(logits.topk(sampling.top_k)).min();
    logits = logits.masked_fill(logits < least, -std::numeric_limits<double>::infinity());
  }
  return torch::multinomial(torch::softmax(logits, 0), 1, false, generator).item<std::int64_t>();
}

torch::Tensor last_of(const std::vector<std::int64_t>& tokens, std::int64_t most) {
  const auto count = std::min(most, static_cast<std::int64_t>(tokens.size()));
  auto window = torch::empty({1, count}, torch::kInt64);
  std::copy(tokens.end() - count, tokens.end(), window.mutable_data_ptr<std::int64_t>());
  return window;
}

class ByWholeModel final : public Foretelling {
 public:
  ByWholeModel(task::Model model, const torch::Device& device)
      : model_(std::move(model)), device_(device) {}

  torch::Tensor logits(const torch::Tensor& tokens) override {
    return task::run_units(model_, {tokens.to(device_)}).at(0).select(1, -1).squeeze(0);
  }
  bool remembers(const task::Past& past) override { return past.remembers(); }
  std::int64_t agree(std::optional<std::int64_t> drawn) override { return drawn.value(); }

 private:
  const task::Model model_;
  const torch::Device device_;
};

}  // namespace

std::shared_ptr<Foretelling> foretold_by(task::Model model, const torch::Device& device) {
  return std::make_shared<ByWholeModel>(std::move(model), device);
}

Continuation::Continuation(std::shared_ptr<Foretelling> by, std::int64_t context,
                           std::vector<std::int64_t> prompt, const Sampling& sampling)
    : by_(std::move(by)),
      context_(context),
      sampling_(sampling),
      generator_(at::make_generator<at::CPUGeneratorImpl>(sampling.seed)),
      tokens_(std::move(prompt)),
      past_(std::in_place, context) {
  check(sampling, tokens_);
}

std::int64_t Continuation::next() {
  const torch::NoGradGuard no_grad;
  const auto foretold = logits();
  std::optional<std::int64_t> drawn;
  if (foretold.defined()) drawn = draw(foretold, sampling_, generator_);
  tokens_.push_back(by_->agree(drawn));
  return tokens_.back();
}

/// The logits of the token after the present ones.
torch::Tensor Continuation::logits() {
  const auto count = static_cast<std::int64_t>(tokens_.size());
  if (past_ && count <= context_) {
    const auto added = count - past_->length();
    const task::PastScope going_on(*past_);
    auto foretold = by_->logits(last_of(tokens_, added));
    if (by_->remembers(*past_)) {
      past_->advance(added);
    } else {
      past_.reset();
    }
    return foretold;
  }
  past_.reset();
  return by_->logits(last_of(tokens_, context_));
}

std::vector<std::int64_t> generate(std::shared_ptr<Foretelling> by, std::int64_t context,
                                   const std::vector<std::int64_t>& prompt,
                                   const Sampling& sampling,
                                   const std::function<void(std::int64_t token)>& tell) {
  Continuation text(std::move(by), context, prompt, sampling);
  std::vector<std::int64_t> tokens;
  while (static_cast<std::int64_t>(tokens.size()) < sampling.tokens) {
    tokens.push_back(text.next());
    if (tell) tell(tokens.back());
  }
  return tokens;
}

}  // namespace bimetal::predict
