#pragma once
// How a rank without samples goes on measuring itself: one batch now and then, beside the others'
// work, whose gradient nobody uses (docs/balance.md, "Zero shares").

#include <cstdint>
#include <future>
#include <memory>
#include <optional>

#include "bimetal/progress/rank_figures.h"
#include "bimetal/train/measure/rehearsal.h"
#include "bimetal/train/measure/step_probe.h"

namespace bimetal::train {

/// Computes on a thread (and, on an accelerator, a stream) of its own with a model of its own, so
/// that it holds nobody up, however long it takes, and touches neither the job's parameters and
/// buffers nor its sampler and random numbers. Use from one thread.
class ShadowBatch {
 public:
  /// `job` and `task` must outlive it. options.budget is not used.
  ShadowBatch(const job::TrainConfig& job, const task::Task& task, const ProbeOptions& options)
      : job_(job), task_(task), options_(options) {}
  /// Waits for the batch under way.
  ~ShadowBatch() = default;
  ShadowBatch(const ShadowBatch&) = delete;
  ShadowBatch& operator=(const ShadowBatch&) = delete;

  /// Starts on samples of about that weight > 0; does nothing while another batch is under way, or
  /// after one did not fit into memory.
  void begin(std::int64_t weight);

  /// What has been measured since the last call, emulated slowness included; nothing otherwise.
  /// Rethrows what went wrong, but for a lack of memory.
  progress::ShadowFigures take();

  /// Gives the memory back, once nothing is under way: the rank has samples again.
  void rest();

 private:
  bool under_way() const { return running_.valid(); }

  const job::TrainConfig& job_;
  const task::Task& task_;
  ProbeOptions options_;
  std::optional<Rehearsal> rehearsal_;
  bool fits_ = true;
  std::int64_t weight_ = 0;
  std::future<double> running_;  ///< last: ends before what it uses
};

}  // namespace bimetal::train
