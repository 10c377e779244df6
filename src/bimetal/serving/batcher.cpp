#include "bimetal/serving/batcher.h"

#include <algorithm>
#include <set>
#include <utility>

namespace bimetal::serving {

bool Batcher::reserve(std::int64_t samples) {
  const std::scoped_lock lock(mutex_);
  if (waiting_ > 0 && waiting_ + samples > options_.max_waiting) return false;
  waiting_ += samples;
  return true;
}

void Batcher::release(std::int64_t samples) {
  const std::scoped_lock lock(mutex_);
  waiting_ -= samples;
}

void Batcher::add(std::shared_ptr<Request> request) {
  const std::scoped_lock lock(mutex_);
  request->arrived = std::chrono::steady_clock::now();
  queue_.push_back(std::move(request));
  changed_.notify_all();
}

void Batcher::set_clients(std::size_t clients) {
  const std::scoped_lock lock(mutex_);
  clients_ = clients;
  changed_.notify_all();
}

std::int64_t Batcher::waiting() const {
  const std::scoped_lock lock(mutex_);
  return waiting_;
}

std::int64_t Batcher::queued_samples() const {
  std::int64_t samples = 0;
  for (const auto& request : queue_) samples += request->samples - request->taken;
  return samples;
}

bool Batcher::everybody_asks() const {
  std::set<std::uint64_t> asking;
  for (const auto& request : queue_) {
    if (request->client >= kFirstGuest) return false;  // how many more may come, nobody knows
    asking.insert(request->client);
  }
  return asking.size() >= clients_;
}

/// Whether waiting longer would gain nothing, or has lasted long enough.
bool Batcher::due(std::chrono::steady_clock::time_point now) const {
  if (queue_.empty()) return false;
  const auto oldest = std::ranges::min(queue_, {}, [](const auto& r) { return r->arrived; });
  return oldest->arrived + options_.max_delay <= now || queued_samples() >= options_.max_batch ||
         everybody_asks();
}

std::optional<Batch> Batcher::next(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (!due(std::chrono::steady_clock::now())) {
    if (deadline.expired()) return std::nullopt;
    auto until = deadline.time();
    for (const auto& request : queue_)
      until = std::min(until, request->arrived + options_.max_delay);
    changed_.wait_until(lock, until);
  }
  Batch batch;
  std::int64_t room = options_.max_batch;
  while (room > 0 && !queue_.empty()) {
    const auto request = std::move(queue_.front());
    queue_.pop_front();
    const auto samples = std::min(room, request->samples - request->taken);
    batch.push_back({request, request->taken, samples});
    request->taken += samples;
    room -= samples;
    waiting_ -= samples;
    if (request->taken < request->samples) queue_.push_back(request);  // room is 0 then
  }
  return batch;
}

void Batcher::forget(const std::function<bool(const Request&)>& which) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(queue_, [&](const auto& request) {
    if (!which(*request)) return false;
    waiting_ -= request->samples - request->taken;
    return true;
  });
}

std::vector<std::shared_ptr<Request>> Batcher::drain() {
  const std::scoped_lock lock(mutex_);
  waiting_ -= queued_samples();
  const auto all = std::exchange(queue_, {});
  return {all.begin(), all.end()};
}

}  // namespace bimetal::serving
