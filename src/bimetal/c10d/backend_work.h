#pragma once
// An operation in flight, as torch wants to see it.

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "bimetal/comm/work.h"

namespace bimetal::c10d {

/// Done when everything it follows is done and the results are in the caller's tensors. Completed
/// on one of the group's own threads, or at once in the thread of the call; wait() and the future
/// give a BackendError on failure. Thread-safe.
class BackendWork final : public ::c10d::Work {
 public:
  using Clock = std::chrono::steady_clock;

  /// What a new work is told about its call.
  struct Description {
    int rank = 0;
    ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
    const char* title = nullptr;  ///< in profiles
    std::uint64_t sequence = 0;   ///< number of the call in its process group
    Clock::time_point begun = Clock::now();
    std::vector<at::Tensor> outputs = {};  ///< result(), and the future's value
  };

  explicit BackendWork(Description description);

  /// Becomes done with the last of `parts`, after `hand_back` has run. Once, with at least one.
  void follow(const std::vector<comm::Work>& parts, std::function<void()> hand_back);
  /// The same for works of this class.
  void follow(const std::vector<c10::intrusive_ptr<BackendWork>>& parts);

  bool isCompleted() override;
  std::vector<at::Tensor> result() override { return call_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  /// Milliseconds from the call to its end. Error where it has not ended.
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override { return call_.sequence; }
  void abort() override;

 private:
  void part_done(const std::exception_ptr& error);
  void complete(const std::exception_ptr& error);

  Description call_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::function<void()> hand_back_;
  std::atomic<std::size_t> parts_left_{0};
  std::exception_ptr first_error_;  // under error_mutex_
  std::mutex error_mutex_;
  std::atomic<float> milliseconds_{-1};
};

}  // namespace bimetal::c10d
