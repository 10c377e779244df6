#pragma once
// The state of a loop over BalancedBatches, between the range that hands out batches and the
// DataParallel that ends steps. Private to api.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/api/job.h"
#include "bimetal/balance/balancer.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/task/task.h"
#include "bimetal/train/profile/step_profiler.h"
#include "bimetal/train/rank_journal.h"

namespace bimetal::api {

/// In a catch block, whose exception it is: "rank 1", with its machine where there are several, and
/// the unit that threw it: "rank 1 (mac), unit 'block.2'".
std::string origin_of_failure(const comm::Group& group);

/// Ends the job on all other ranks, with the error of `work` here and its origin, and rethrows it
/// when they have been told: an error that names a rank is known to them.
void or_end_all(comm::Group group, const std::function<void()>& work);

/// The time for which a process that ends waits until the others have been told why.
inline constexpr std::chrono::milliseconds kLastWords{250};

/// Ends a loop of which all ranks have agreed in the last step that its workers change. No
/// std::exception: it is for bimetal::elastic alone.
struct WorkersChange {
  std::vector<int> leaving;  ///< ranks
};

class BalancedSteps {
 public:
  /// `lanes`: who computes which part of a batch together. Collective: Error(CallMismatch) where
  /// the ranks' options or data sets differ; InvalidArgument for another seed than `from` has.
  BalancedSteps(std::shared_ptr<const task::Dataset> dataset, const BalancedOptions& options,
                std::int64_t first_epoch, const comm::Group& group, const train::Lanes& lanes,
                const torch::Device& device, const std::shared_ptr<progress::Observer>& observer);

  /// Where a loop that comes after this one begins.
  std::int64_t next_epoch() const noexcept { return next_epoch_; }

  // For the range.
  void advance();
  bool finished() const noexcept { return finished_; }
  Batch& batch() noexcept { return batch_; }

  // For the code that ends steps, once per batch.
  /// The step that the batch handed out belongs to. Error(InvalidArgument) if it has ended already.
  const data::BatchFeed::Plan& open_plan() const;
  /// This rank's samples of that batch.
  std::span<const std::int64_t> own_samples() const {
    return open_plan().samples.of_rank(lanes_.mine());
  }
  std::int64_t own_weight() const {
    return open_plan().samples.weights[static_cast<std::size_t>(lanes_.mine())];
  }
  /// Error(InvalidArgument) unless batches are dealt to so many: ranks, or replicas of stages.
  void require_dealt_to(int lanes) const;
  std::int64_t step() const noexcept { return batch_.step; }
  std::uint64_t seed() const noexcept { return state_.seed; }
  std::int64_t sample_group() const noexcept { return sample_group_; }
  const task::Dataset& dataset() const noexcept { return *dataset_; }
  /// Seconds since the batch was handed out.
  double seconds() const { return since_handed_out_.seconds(); }
  /// `loss_scale`: that of the next step, if there is one.
  void end_step(const train::StepResult& result, std::optional<double> loss_scale);
  /// The body of the loop goes on to its end, and the next call throws WorkersChange.
  void end_for(std::vector<int> leaving) { change_ = WorkersChange{std::move(leaving)}; }
  void require_no_change() const {
    if (change_) throw WorkersChange(*change_);
  }

  const progress::Progress& progress() const noexcept { return progress_; }
  /// Collective.
  progress::Report report() const;
  /// This loop's state for a checkpoint. Its steps are those of the loop. Error (InvalidArgument)
  /// while a batch's step has not ended.
  checkpoint::TrainingState state() const;

 private:
  BalancedSteps(std::shared_ptr<const task::Dataset> dataset, const data::EpochSampler& sampler,
                const BalancedOptions& options, std::int64_t first_epoch, const comm::Group& group,
                const train::Lanes& lanes, const torch::Device& device,
                const std::shared_ptr<progress::Observer>& observer);
  void hand_out();

  std::shared_ptr<const task::Dataset> dataset_;
  comm::Group group_;
  train::Lanes lanes_;
  checkpoint::TrainingState state_;
  std::int64_t planned_;
  std::int64_t next_epoch_;
  std::int64_t sample_group_;
  balance::Balancer balancer_;
  data::BatchFeed feed_;
  train::RunJournal run_;
  train::RankJournal journal_;
  std::unique_ptr<train::StepProfiler> profiler_;  ///< none: no profile was asked for
  std::optional<data::BatchFeed::Plan> open_;
  std::optional<WorkersChange> change_;
  Batch batch_;
  Stopwatch since_handed_out_;
  progress::Progress progress_;
  bool begun_ = false, finished_ = false;
};

}  // namespace bimetal::api
