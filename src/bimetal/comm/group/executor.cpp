#include "bimetal/comm/group/executor.h"

#include <utility>

namespace bimetal::comm {

Timer::Alarm Timer::at(Deadline when, std::function<void()> action) {
  std::lock_guard lock(mutex_);
  if (stopped_) return {};
  const Alarm alarm{when.time(), ++last_number_};
  alarms_.emplace(alarm, std::move(action));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  } else if (when.time() < looks_again_) {
    // Else it need not be woken: it may sleep for an alarm that has been cancelled meanwhile.
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
      looks_again_ = Deadline::Clock::time_point::max();
      changed_.wait(lock);
      continue;
    }
    const auto next = alarms_.begin();
    if (next->first.time > Deadline::Clock::now()) {
      looks_again_ = next->first.time;
      changed_.wait_until(lock, looks_again_);
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

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void Executor::push(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_one();
}

void Executor::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

}  // namespace bimetal::comm
