#pragma once
// Some steps of a training under libtorch's profiler, on all ranks.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bimetal/comm/group.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/profile/profile.h"

namespace bimetal::train {

/// The times that the observer is told of.
progress::StepTimes times_of(const Profile& profile);

/// Use from the thread that computes. One of a process at a time, since libtorch has one profiler.
class StepProfiler {
 public:
  /// `request`: rank 0's counts, nothing stands for no profile. `place`: where this rank computes,
  /// for people. Collective.
  StepProfiler(comm::Group group, std::optional<ProfileRequest> request,
               const torch::Device& device, std::string place, std::chrono::milliseconds timeout);
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  /// The next `steps` steps, behind `step`, are to be profiled; false while others are, or are to
  /// be. `done`: rank 0's, as ProfileRequest has it; no trace is written. On all ranks alike.
  bool ask(std::int64_t step, int steps, std::function<void(const Profile&)> done);

  /// Around each step of the training. The last one of the profile gathers it from all ranks, which
  /// is collective, writes the trace and tells who has asked for it. True if this has taken time
  /// that is no step's. Errors: InvalidArgument for a trace that cannot be written; the fabric's.
  void begin(std::int64_t step);
  bool end(std::int64_t step);

  /// The training is over: gathers a profile whose last step was not reached, as far as it goes.
  /// False if its first step was not. Collective.
  bool finish();

 private:
  struct Recording;

  void gather();

  comm::Group group_;
  std::optional<ProfileRequest> request_;
  torch::Device device_;
  std::string place_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<Recording> recording_;  ///< from the first step to the last
  bool done_ = false;
};

}  // namespace bimetal::train
