#include "bimetal/serving/text_answering.h"

#include <exception>
#include <utility>

#include "bimetal/base/log.h"

namespace bimetal::serving {
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
