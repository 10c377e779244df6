#include "bimetal/c10d/backend_work.h"

#include <system_error>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/c10d/backend_error.h"

namespace bimetal::c10d {
namespace {

// A future of device tensors records events on their devices; one of CPU tensors has none.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const auto& tensor : tensors) {
    if (!tensor.device().is_cpu()) devices.push_back(tensor.device());
  }
  return devices;
}

}  // namespace

BackendWork::BackendWork(Description description, const GroupCalls& calls, bool ordered)
    : Work(description.rank, description.type, description.title,
           std::exchange(description.inputs, {})),
      call_(std::move(description)),
      ordered_(ordered),
      order_(calls.order),
      threads_(calls.threads) {}

void BackendWork::follow(const std::vector<comm::Work>& parts, std::function<void()> hand_back) {
  hand_back_ = std::move(hand_back);
  if (parts.size() == 1) message_ = parts.front();
  parts_left_ = parts.size();
  const auto self = c10::intrusive_ptr<BackendWork>::reclaim_copy(this);
  for (const auto& part : parts) {
    part.on_done([self](const std::exception_ptr& error) {
      enter_thread();
      self->part_done(error);
    });
  }
}

void BackendWork::follow(const std::vector<c10::intrusive_ptr<BackendWork>>& parts) {
  parts_left_ = parts.size();
  const auto self = c10::intrusive_ptr<BackendWork>::reclaim_copy(this);
  for (const auto& part : parts) {
    part->on_end([self](const std::exception_ptr& error) { self->part_done(error); });
  }
}

void BackendWork::part_done(const std::exception_ptr& error) {
  if (error) {
    std::lock_guard lock(state_mutex_);
    if (!error_) error_ = error;
  }
  if (parts_left_.fetch_sub(1) > 1) return;
  // Any error of a call ends the group.
  if (const auto order = order_.lock(); error_ && order) order->give_up();
  std::exception_ptr failure = error_ ? as_backend_error(error_) : nullptr;
  try {
    if (!failure && hand_back_) hand_back_();
  } catch (...) {
    failure = as_backend_error(std::current_exception());
  }
  complete(failure);
}

void BackendWork::complete(const std::exception_ptr& error) {
  hand_back_ = nullptr;
  milliseconds_ = std::chrono::duration<float, std::milli>(Clock::now() - call_.begun).count();
  std::vector<End> ends;
  FuturePtr future;
  CallOrder::SectionPtr section;
  {
    std::lock_guard lock(state_mutex_);
    error_ = error;
    ended_ = true;
    ends.swap(ends_);
    future = future_;
    section.swap(section_);
  }
  finish(error);
  for (const auto& end : ends) end(error);
  if (future) settle_later(std::move(future), std::move(section));
}

void BackendWork::on_end(End end) {
  {
    std::lock_guard lock(state_mutex_);
    if (!ended_) {
      ends_.push_back(std::move(end));
      return;
    }
  }
  end(error_);
}

bool BackendWork::wait(std::chrono::milliseconds timeout) {
  const bool ended = Work::wait(timeout);
  if (const auto future = asked_future()) future->wait();
  return ended;
}

BackendWork::FuturePtr BackendWork::asked_future() const {
  std::lock_guard lock(state_mutex_);
  return future_;
}

BackendWork::FuturePtr BackendWork::getFuture() {
  if (auto future = asked_future()) return future;
  const auto order = ordered_ && !isCompleted() ? order_.lock() : nullptr;
  auto section = order ? order->open() : nullptr;
  std::unique_lock lock(state_mutex_);
  if (!future_) {
    const auto type = c10::ListType::create(c10::TensorType::get());
    future_ = c10::make_intrusive<c10::ivalue::Future>(type, devices_of(call_.outputs));
    if (ended_) {
      settle(*future_);
    } else {
      section_ = std::exchange(section, nullptr);
    }
  }
  auto future = future_;
  lock.unlock();
  // Not here: calls would begin in a thread that has Python's lock.
  if (section) threads_->run([order, section] { order->close(section); });
  return future;
}

void BackendWork::settle_later(FuturePtr future, CallOrder::SectionPtr section) {
  const auto self = c10::intrusive_ptr<BackendWork>::reclaim_copy(this);
  const auto task = [self, future, section, order = order_.lock()] {
    {
      const CallOrder::Inside inside(section);
      try {
        self->settle(*future);
      } catch (const std::exception& error) {
        log(LogLevel::error, "a callback of a future has failed: {}", error.what());
      }
    }
    if (order && section) order->close(section);
  };
  try {
    threads_->run(task);
  } catch (const std::system_error&) {
    task();  // without a thread for it
  }
}

/// Runs its callbacks.
void BackendWork::settle(c10::ivalue::Future& future) const {
  if (error_) {
    future.setError(error_);
  } else {
    future.markCompleted(c10::IValue(call_.outputs));
  }
}

bool BackendWork::isCompleted() {
  std::lock_guard lock(mutex_);
  return completed_;
}

float BackendWork::getDuration() const {
  const float milliseconds = milliseconds_;
  TORCH_CHECK(milliseconds >= 0, "the operation has not ended yet");
  return milliseconds;
}

int BackendWork::sourceRank() const {
  std::lock_guard lock(state_mutex_);
  TORCH_CHECK(ended_ && message_.sender() >= 0,
              "only a receive from any rank that is done knows its sender");
  return message_.sender();
}

void BackendWork::abort() {
  TORCH_CHECK(false,
              "one operation cannot be aborted alone: its peers would wait for it; abort the "
              "process group");
}

}  // namespace bimetal::c10d
