#include "bimetal/comm/timer.h"

namespace bimetal::comm {

Timer::Alarm Timer::at(Deadline when, std::function<void()> action) {
  std::lock_guard lock(mutex_);
  if (stopped_) return {};
  const Alarm alarm{when.time(), ++last_number_};
  const bool earliest = alarms_.empty() || alarm < alarms_.begin()->first;
  alarms_.emplace(alarm, std::move(action));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  } else if (earliest) {
    changed_.notify_one();
  }
  return alarm;
}

void Timer::cancel(const Alarm& alarm) {
  // The action is destroyed after the lock: it may own what calls back into this object.
  std::function<void()> cancelled;
  std::lock_guard lock(mutex_);
  const auto found = alarms_.find(alarm);
  if (found == alarms_.end()) return;
  cancelled.swap(found->second);
  alarms_.erase(found);
}

void Timer::stop() {
  std::map<Alarm, std::function<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(alarms_);
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Timer::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (alarms_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto next = alarms_.begin();
    if (next->first.time > Deadline::Clock::now()) {
      changed_.wait_until(lock, next->first.time);
      continue;
    }
    auto action = std::move(next->second);
    alarms_.erase(next);
    lock.unlock();
    action();
    action = nullptr;
    lock.lock();
  }
}

}  // namespace bimetal::comm
