#include "bimetal/serving/answering.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/log.h"

namespace bimetal::serving {

Error as_served_error(const std::exception& failure) {
  if (const auto* error = dynamic_cast<const Error*>(&failure)) return *error;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
  const std::string text = failure.what();
  return Error(
      memory ? ErrorCode::OutOfMemory : ErrorCode::Internal,
      fmt::format("the server could not compute this: {}", text.substr(0, text.find('\n'))));
}

namespace {

using Clock = std::chrono::steady_clock;

void require_that_samples_fit(const ModelFacts& facts) {
  if (most_samples(facts, comm::DType::float64) >= 1) return;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format(
          "a sample of the model '{}' ({}x{}x{}, {} classes) does not fit a request of {} MiB",
          facts.model, facts.channels, facts.height, facts.width, facts.classes,
          kMaxRequestBytes >> 20));
}

}  // namespace

BatchAnswering::BatchAnswering(const BatcherOptions& options, Model& model, Recorder& recorder)
    : model_(model),
      classes_(static_cast<std::size_t>(model.facts().classes)),
      recorder_(recorder),
      waiting_(options) {
  require_that_samples_fit(model.facts());
}

void BatchAnswering::run(const std::atomic<bool>& stopping) {
  while (!stopping) {
    const auto batch = waiting_.next(Deadline::after(kLookForTheEnd));
    if (!batch) continue;
    try {
      answer(*batch);
    } catch (const std::exception& failure) {
      const auto why = as_served_error(failure);
      log(LogLevel::warning, "a batch of predictions has failed: {}", why.what());
      fail(*batch, why);
    }
  }
}

void BatchAnswering::forget(std::uint64_t client) {
  waiting_.forget([client](const Request& request) { return request.client == client; });
}

void BatchAnswering::answer(const Batch& batch) {
  std::vector<Samples> parts;
  std::int64_t samples = 0;
  for (const Part& part : batch) {
    const Request& request = *part.request;
    const auto bytes = request.values.size() / static_cast<std::size_t>(request.samples);
    parts.push_back({request.dtype, part.samples,
                     std::span(request.values)
                         .subspan(bytes * static_cast<std::size_t>(part.first),
                                  bytes * static_cast<std::size_t>(part.samples))});
    samples += part.samples;
  }
  std::vector<double> logits(classes_ * static_cast<std::size_t>(samples));
  const auto weights = model_.answer(parts, logits);
  recorder_.computed_batch();
  std::span<const double> rest(logits);
  for (const Part& part : batch) {
    Request& request = *part.request;
    auto& answer = request.predicted;
    if (request.answered == 0) answer.weights = weights;
    answer.weights.oldest = std::min(answer.weights.oldest, weights.oldest);
    answer.weights.newest = std::max(answer.weights.newest, weights.newest);
    const auto own = rest.first(classes_ * static_cast<std::size_t>(part.samples));
    answer.logits.insert(answer.logits.end(), own.begin(), own.end());
    rest = rest.subspan(own.size());
    request.answered += part.samples;
    if (request.answered < request.samples) continue;
    recorder_.answered(request.samples, Clock::now() - request.arrived);
    request.done(request, std::nullopt);
  }
}

void BatchAnswering::fail(const Batch& batch, const Error& why) {
  for (const Part& part : batch) {
    Request& request = *part.request;
    waiting_.forget([&](const Request& other) { return &other == &request; });
    if (request.answered < request.samples) request.done(request, why);
  }
}

}  // namespace bimetal::serving
