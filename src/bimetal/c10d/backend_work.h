#pragma once
// An operation in flight, as torch wants to see it.

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "bimetal/c10d/backend_error.h"
#include "bimetal/c10d/group_calls.h"
#include "bimetal/comm/work.h"

namespace bimetal::c10d {

/// Done when everything it follows is done and the results are in the caller's tensors: on one of
/// the group's own threads, or at once in the thread of the call. Its future becomes done just
/// behind it, on a thread where its callbacks may block. wait() and the future give a BackendError
/// on failure. Thread-safe.
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
    std::vector<at::Tensor> inputs = {};   ///< in profiles
  };

  /// `ordered`: later calls come behind the callbacks of its future. (Not those of messages, which
  /// may have to wait for a later call of their sender.)
  BackendWork(Description description, const GroupCalls& calls, bool ordered);

  /// Becomes done with the last of `parts`, after `hand_back` has run. Once, with at least one.
  void follow(const std::vector<comm::Work>& parts, std::function<void()> hand_back);
  /// The same for works of this class.
  void follow(const std::vector<c10::intrusive_ptr<BackendWork>>& parts);
  /// In place of following: it could not begin.
  void fail(const std::exception_ptr& error) { complete(as_backend_error(error)); }

  bool isCompleted() override;
  bool ordered() const noexcept { return ordered_; }
  /// Whoever returns finds the future done, too, if it has been asked for before.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return call_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Milliseconds from the call to its end. Error where it has not ended.
  float getDuration() const override;
  /// Of a receive from anybody that is done: its sender's rank in the group.
  int sourceRank() const override;
  std::uint64_t getSequencenumber() const override { return call_.sequence; }
  void abort() override;

 private:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  using End = std::function<void(const std::exception_ptr&)>;

  void part_done(const std::exception_ptr& error);
  void complete(const std::exception_ptr& error);
  void on_end(End end);
  void settle_later(FuturePtr future, CallOrder::SectionPtr section);
  void settle(c10::ivalue::Future& future) const;
  FuturePtr asked_future() const;

  const Description call_;
  const bool ordered_;
  const std::weak_ptr<CallOrder> order_;  // which holds works back
  const std::shared_ptr<CallbackThreads> threads_;
  std::function<void()> hand_back_;
  comm::Work message_;  ///< what it follows, where that is one operation
  std::atomic<std::size_t> parts_left_{0};
  std::atomic<float> milliseconds_{-1};
  mutable std::mutex state_mutex_;
  std::exception_ptr error_;  // the first; constant once ended_
  bool ended_ = false;
  FuturePtr future_;               // once somebody has asked for it
  CallOrder::SectionPtr section_;  // its callbacks' place
  std::vector<End> ends_;
};

}  // namespace bimetal::c10d
