#pragma once
// The state of a loop over BalancedBatches, between the range that hands out batches and the
// DataParallel that ends steps. Private to api.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/api/balanced_batches.h"
#include "bimetal/balance/balancer.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/batch_feed.h"
#include "bimetal/train/rank_journal.h"

namespace bimetal::api {

class BalancedSteps {
 public:
  /// Collective: Error(CallMismatch) where the ranks' options or data sets differ.
  BalancedSteps(std::shared_ptr<const task::Dataset> dataset, const BalancedOptions& options,
                std::int64_t first_epoch, const comm::Group& group, const torch::Device& device);

  /// Where a loop that comes after this one begins.
  std::int64_t next_epoch() const noexcept { return next_epoch_; }

  // For the range.
  void advance();
  bool finished() const noexcept { return finished_; }
  Batch& batch() noexcept { return batch_; }

  // For DataParallel, once per batch.
  /// The step that the batch handed out belongs to. Error(InvalidArgument) if it has ended already.
  const data::BatchFeed::Plan& open_plan() const;
  std::int64_t step() const noexcept { return batch_.step; }
  std::int64_t sample_group() const noexcept { return sample_group_; }
  /// Seconds since the batch was handed out.
  double seconds() const { return since_handed_out_.seconds(); }
  void end_step(const train::StepResult& result);

  const progress::Progress& progress() const noexcept { return progress_; }

 private:
  BalancedSteps(std::shared_ptr<const task::Dataset> dataset, const data::EpochSampler& sampler,
                const BalancedOptions& options, std::int64_t first_epoch, const comm::Group& group,
                const torch::Device& device);

  std::int64_t planned_;
  std::int64_t next_epoch_;
  std::int64_t sample_group_;
  balance::Balancer balancer_;
  data::BatchFeed feed_;
  train::RunJournal run_;
  train::RankJournal journal_;
  std::optional<data::BatchFeed::Plan> open_;
  Batch batch_;
  Stopwatch since_handed_out_;
  progress::Progress progress_;
  bool finished_ = false;
};

}  // namespace bimetal::api
