#include "bimetal/comm/work.h"

#include <exception>
#include <utility>

#include "bimetal/comm/failure.h"

namespace bimetal::comm {

void Work::State::finish(std::optional<Failure> failure) {
  std::vector<Callback> callbacks;
  {
    std::lock_guard lock(mutex_);
    if (done_) return;
    failure_ = std::move(failure);
    done_ = true;
    callbacks.swap(callbacks_);
    // Under the lock: a waiter may drop the last handle as soon as it sees done_.
    changed_.notify_all();
  }
  for (auto& callback : callbacks) callback(exception());
}

void Work::State::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
  if (failure_) throw failure_->to_error();
}

bool Work::State::wait_until(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.time(), [&] { return done_; });
}

bool Work::State::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

std::exception_ptr Work::State::error() const {
  std::lock_guard lock(mutex_);
  return exception();
}

void Work::State::on_done(Callback callback) {
  {
    std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(exception());
}

void Work::wait() const {
  if (state_) state_->wait();
}

bool Work::wait_until(Deadline deadline) const {
  return !state_ || state_->wait_until(deadline);
}

bool Work::done() const {
  return !state_ || state_->done();
}

std::exception_ptr Work::error() const {
  return state_ ? state_->error() : nullptr;
}

int Work::sender() const {
  return state_ ? state_->sender() : -1;
}

void Work::on_done(std::function<void(std::exception_ptr)> callback) const {
  if (state_) {
    state_->on_done(std::move(callback));
  } else {
    callback(nullptr);
  }
}

void wait_for_all(std::span<const Work> works) {
  std::exception_ptr first;
  for (const auto& work : works) {
    try {
      work.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace bimetal::comm
