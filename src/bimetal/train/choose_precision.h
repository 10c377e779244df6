#pragma once
// The precision in which each rank computes.

#include <optional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/precision/loss_scaler.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/task/task.h"

namespace bimetal::train {

/// The worker's own precision, or else train.precision. "auto" measures some steps of `task` in
/// each that the device knows, and takes a lower one only where it is clearly faster: bfloat16
/// before tf32, or
/// on an accelerator with parallel.mode "all_reduce" and uncompressed gradients also float16, where
/// bfloat16 does not pay. Draws from torch's default generator: seed it afterwards. Errors:
/// Unsupported for a precision that the device lacks; require_possible()'s.
precision::Precision choose_precision(const job::JobConfig& job, const job::WorkerSpec& worker,
                                      const device::Place& place, const task::Task& task);

/// Whether images are given to convolutions with their channels last: as train.memory_format says.
/// "auto" measures some steps each way, and tells the observer if it is clearly faster. Draws from
/// torch's default generator, as choose_precision() does.
bool choose_channels_last(const job::JobConfig& job, const device::Place& place,
                          const task::Task& task, precision::Precision precision,
                          progress::Observer& observer);

/// Whether the device can compute in it, however slowly.
bool knows(precision::Precision precision, const torch::Device& device);

/// Whether every rank has a precision, and all the same: ranks with tensors in parts need that,
/// because they add up their results. Collective.
bool all_in_one_precision(comm::Group group, std::optional<precision::Precision> mine,
                          Deadline deadline);

/// The precisions of all ranks of a run. Safe from any thread.
class RankPrecisions {
 public:
  /// Chooses for this rank, unless it is `known`, and learns of the others. Collective. Tells the
  /// observer of its phase where it measures. Errors: choose_precision()'s.
  RankPrecisions(comm::Group group, const job::JobConfig& job, const job::WorkerSpec& worker,
                 const device::Place& place, const task::Task& task, progress::Observer& observer,
                 std::optional<precision::Precision> known = {});

  precision::Precision mine() const noexcept { return mine_; }
  /// The type of half the size that all ranks multiply matrices in; nothing: some do not, or theirs
  /// differ.
  std::optional<torch::Dtype> half_of_all() const;

  /// The gradients of all ranks are scaled where any of them computes in float16.
  std::optional<precision::LossScalerOptions> scaler() const;

  /// Reports each worker's precision, and the scale at the end.
  void report(progress::Report& report, const std::optional<precision::LossScaler>& scaler) const;

 private:
  precision::Precision mine_;
  precision::LossScalerOptions scaler_;
  std::vector<precision::Precision> all_;  ///< by rank
};

}  // namespace bimetal::train
