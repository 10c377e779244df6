#include "bimetal/predict/language_writer.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/predict/generate.h"

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
    refuse(
        fmt::format("token {} is not in the model's vocabulary of {}: its tokenizer is another "
                    "than the text's",
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

}  // namespace bimetal::predict
