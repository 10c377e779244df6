#pragma once
// The state of a loop over BalancedBatches, between the range that hands out batches and the
// DataParallel that ends steps. Private to api.

#include <cstdint>
#include <optional>
#include <vector>

#include "bimetal/api/balanced_batches.h"
#include "bimetal/balance/balancer.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/comm/group.h"
#include "bimetal/train/batch_feed.h"
#include "bimetal/train/journal.h"

namespace bimetal::api {

class BalancedSteps {
 public:
  BalancedSteps(const data::ImageDataset& dataset, const BalancedOptions& options,
                const comm::Group& group, const torch::Device& device);

  // For the range.
  void advance();
  bool finished() const noexcept { return finished_; }
  Batch& batch() noexcept { return batch_; }

  // For DataParallel, once per batch.
  /// The step that the batch handed out belongs to. Error(InvalidArgument) if it has ended already.
  const train::BatchFeed::Plan& open_plan() const;
  std::int64_t step() const noexcept { return batch_.step; }
  /// Seconds since the batch was handed out.
  double seconds() const { return since_handed_out_.seconds(); }
  void end_step(const train::StepResult& result);

  const train::Progress& progress() const noexcept { return progress_; }

 private:
  std::vector<double> alone_rates() const;

  std::int64_t planned_;
  balance::Balancer balancer_;
  train::BatchFeed feed_;
  train::Journal journal_;
  std::optional<train::BatchFeed::Plan> open_;
  Batch batch_;
  Stopwatch since_handed_out_;
  train::Progress progress_;
  bool finished_ = false;
};

}  // namespace bimetal::api
