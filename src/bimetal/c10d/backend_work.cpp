#include "bimetal/c10d/backend_work.h"

#include <utility>

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

BackendWork::BackendWork(Description description)
    : Work(description.rank, description.type, description.title),
      call_(std::move(description)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()), devices_of(call_.outputs))) {}

void BackendWork::follow(const std::vector<comm::Work>& parts, std::function<void()> hand_back) {
  hand_back_ = std::move(hand_back);
  parts_left_ = parts.size();
  const auto self = c10::intrusive_ptr<BackendWork>::reclaim_copy(this);
  for (const auto& part : parts) {
    part.on_done([self](const std::exception_ptr& error) { self->part_done(error); });
  }
}

void BackendWork::follow(const std::vector<c10::intrusive_ptr<BackendWork>>& parts) {
  parts_left_ = parts.size();
  const auto self = c10::intrusive_ptr<BackendWork>::reclaim_copy(this);
  for (const auto& part : parts) {
    part->future_->addCallback([self](c10::ivalue::Future& future) {
      self->part_done(future.hasError() ? future.exception_ptr() : nullptr);
    });
  }
}

void BackendWork::part_done(const std::exception_ptr& error) {
  if (error) {
    std::lock_guard lock(error_mutex_);
    if (!first_error_) first_error_ = error;
  }
  if (parts_left_.fetch_sub(1) > 1) return;
  std::exception_ptr failure = first_error_ ? as_backend_error(first_error_) : nullptr;
  try {
    if (!failure && hand_back_) hand_back_();
  } catch (...) {
    failure = std::current_exception();
  }
  complete(failure);
}

void BackendWork::complete(const std::exception_ptr& error) {
  hand_back_ = nullptr;
  milliseconds_ = std::chrono::duration<float, std::milli>(Clock::now() - call_.begun).count();
  // The future first: whoever returns from wait() finds it done.
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(call_.outputs));
  }
  finish(error);
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

void BackendWork::abort() {
  TORCH_CHECK(false,
              "one operation cannot be aborted alone: its peers would wait for it; abort the "
              "process group");
}

}  // namespace bimetal::c10d
