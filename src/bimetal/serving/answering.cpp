#include "bimetal/serving/answering.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
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

namespace {

using Clock = std::chrono::steady_clock;

/// A piece is told after so long, so that readers see a text grow, or when it has so many tokens.
constexpr std::chrono::milliseconds kPieceTime{50};
constexpr std::size_t kPieceTokens = 4096;

}  // namespace

bool TextAnswering::add(TextJob job) {
  {
    const std::scoped_lock lock(mutex_);
    if (waiting_.size() >= options_.max_waiting) return false;
    waiting_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void TextAnswering::forget(std::uint64_t client) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(waiting_, [client](const TextJob& job) { return job.client == client; });
  gone_.insert(client);
}

void TextAnswering::run(const std::atomic<bool>& stopping) {
  while (!stopping) {
    take_waiting();
    for (auto writing = writing_.begin(); writing != writing_.end();) {
      writing = go_on(*writing) ? std::next(writing) : writing_.erase(writing);
    }
  }
}

void TextAnswering::take_waiting() {
  std::deque<TextJob> fresh;
  {
    std::unique_lock lock(mutex_);
    if (writing_.empty()) {
      changed_.wait_for(lock, kLookForTheEnd, [this] { return !waiting_.empty(); });
    }
    std::erase_if(writing_, [this](const Writing& one) {
      return gone_.contains(one.job.client) || one.job.over();
    });
    std::erase_if(waiting_, [](const TextJob& job) { return job.over(); });
    gone_.clear();
    while (!waiting_.empty() && writing_.size() + fresh.size() < options_.at_once) {
      fresh.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }
  for (auto& job : fresh) begin(std::move(job));
}

void TextAnswering::begin(TextJob job) {
  try {
    auto text = writer_.begin(job.wanted);
    const auto tokens = job.wanted.tokens;
    writing_.push_back({std::move(job), std::move(text), tokens, {}, Clock::now()});
  } catch (const std::exception& failure) {
    job.tell({}, as_served_error(failure));
  }
}

/// Whether there is more to come.
bool TextAnswering::go_on(Writing& writing) {
  try {
    if (writing.left > 0) writing.piece.tokens.push_back(writing.text->next());
  } catch (const std::exception& failure) {
    const auto why = as_served_error(failure);
    log(LogLevel::warning, "a text has failed: {}", why.what());
    writing.job.tell({}, why);
    return false;
  }
  recorder_.computed_batch();
  writing.piece.last = --writing.left <= 0;
  if (writing.piece.last) {
    recorder_.answered(writing.job.wanted.tokens, Clock::now() - writing.job.arrived);
  }
  if (writing.piece.last || Clock::now() - writing.told >= kPieceTime ||
      writing.piece.tokens.size() >= kPieceTokens) {
    tell(writing);
  }
  return !writing.piece.last;
}

void TextAnswering::tell(Writing& writing) {
  writing.piece.step = writing.text->step();
  const bool last = writing.piece.last;
  writing.job.tell(std::exchange(writing.piece, {}), std::nullopt);
  writing.piece.last = last;
  writing.told = Clock::now();
}

}  // namespace bimetal::serving
