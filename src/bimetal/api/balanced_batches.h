#pragma once
// A range over this rank's batches whose sizes follow the measured speed of all ranks.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/task/task.h"
#include "bimetal/train/rank_journal.h"

namespace bimetal {
namespace api {
class BalancedSteps;
}

struct BalancedOptions {
  std::int64_t global_batch = 512;  ///< samples per optimizer step over all ranks
  std::int64_t epochs = 1;
  std::int64_t steps = 0;                ///< > 0: stop after this many optimizer steps
  std::uint64_t seed = 1;                ///< of the order of samples
  torch::Dtype dtype = torch::kFloat32;  ///< of images (data::ImageDataset); others have their own
  balance::Policy balance = balance::Policy::Auto;
  std::vector<double> weights = {};  ///< for Policy::Fixed, one per rank
  /// So many samples that follow each other go to one rank together: those that the model
  /// normalises with each other (task::GroupedBatchNorm).
  std::int64_t sample_group = 1;
};

/// This rank's share of one global batch, on the job's device. It may be empty, for a rank that is
/// too slow to help; the loss of an empty batch is ignored, but the step must still be called.
struct Batch {
  task::Values values;     ///< as the data set gives them
  torch::Tensor x, y;      ///< the first and the last of them: of images [b, C, H, W] and [b]
  std::int64_t epoch = 0;  ///< from 1, and on through later loops with the same seed
  std::int64_t step = 0;   ///< from 1, in each loop
};

/// A single pass: begin() continues where the last one ended. Use from one thread.
class BalancedBatches {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() const;
    /// Error(InvalidArgument) unless DataParallel::step has been called for the batch before.
    Iterator& operator++();
    bool operator==(std::default_sentinel_t) const;

   private:
    friend class BalancedBatches;
    explicit Iterator(api::BalancedSteps* steps) : steps_(steps) {}
    api::BalancedSteps* steps_;
  };

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class Job;
  explicit BalancedBatches(std::shared_ptr<api::BalancedSteps> steps) : steps_(std::move(steps)) {}
  std::shared_ptr<api::BalancedSteps> steps_;
};

}  // namespace bimetal

namespace bimetal::api {

// The state of a loop over BalancedBatches, between the range that hands out batches and the
// DataParallel that ends steps. Private to api.

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
