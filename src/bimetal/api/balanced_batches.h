#pragma once
// A range over this rank's batches whose sizes follow the measured speed of all ranks.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/data/sampler.h"
#include "bimetal/task/task.h"
#include "bimetal/train/profile/profile.h"

namespace bimetal {
namespace api {
class BalancedSteps;
}

/// Where a checkpoint left off (DataParallel::resume).
struct StartingPoint {
  std::int64_t step = 0;                ///< optimizer steps done
  data::SamplerPosition position = {};  ///< the next sample of the order
  std::uint64_t seed = 1;               ///< of that order
};

/// What a loop over Job::balanced visits, and how its batches are dealt out. The same on every
/// rank.
struct BalancedOptions {
  std::int64_t global_batch = 512;  ///< samples per optimizer step over all ranks
  std::int64_t epochs = 1;          ///< that this loop visits
  /// The first of them, from 1: for who counts epochs in a loop around this one. 0: goes on where
  /// the loop before this one ended, or with the first.
  std::int64_t epoch = 0;
  /// What has been visited before that is left out: of these epochs the rest is visited, and steps
  /// are counted on. Epochs that are over are empty.
  std::optional<StartingPoint> from = {};
  std::int64_t steps = 0;                ///< > 0: stop after this many optimizer steps
  std::uint64_t seed = 1;                ///< of the order of samples
  torch::Dtype dtype = torch::kFloat32;  ///< of images (data::ImageDataset); others have their own
  /// How a batch is shared: parallel.balance, docs/balance.md.
  balance::Policy balance = balance::Policy::Auto;
  std::vector<double> weights = {};  ///< for Policy::Fixed, one per rank
  /// So many samples that follow each other go to one rank together: those that the model
  /// normalises with each other (task::GroupedBatchNorm).
  std::int64_t sample_group = 1;
  /// Steps of this loop under libtorch's profiler, on all ranks: docs/profile.md.
  std::optional<train::ProfileRequest> profile = {};
};

/// This rank's share of one global batch, on the job's device. It may be empty, for a rank that is
/// too slow to help; the loss of an empty batch is ignored, but the step must still be called.
struct Batch {
  task::Values values;     ///< as the data set gives them
  torch::Tensor x, y;      ///< the first and the last of them: of images [b, C, H, W] and [b]
  std::int64_t epoch = 0;  ///< from 1, and on through later loops with the same seed
  std::int64_t step = 0;   ///< from 1, in each loop; on from BalancedOptions::from
};

/// A single pass: begin() continues where the last one ended. Use from one thread.
class BalancedBatches {
 public:
  /// An input iterator: one pass.
  class Iterator {
   public:
    /// As the standard library asks for it, like the next ones.
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;                ///< what it gives
    using difference_type = std::ptrdiff_t;  ///< of no use: one pass
    using pointer = Batch*;                  ///< to the batch
    using reference = Batch&;                ///< valid until the next one

    /// This rank's batch, which lives until the iterator goes on.
    Batch& operator*() const;
    /// Error(InvalidArgument) unless DataParallel::step has been called for the batch before.
    Iterator& operator++();
    /// Whether the loop is over: on all ranks alike.
    bool operator==(std::default_sentinel_t) const;

   private:
    friend class BalancedBatches;
    explicit Iterator(api::BalancedSteps* steps) : steps_(steps) {}
    api::BalancedSteps* steps_;
  };

  /// Hands out the first batch. Errors: the data set's; those of the iterator's ++.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }  ///< for a range-for

 private:
  friend class Job;
  explicit BalancedBatches(std::shared_ptr<api::BalancedSteps> steps) : steps_(std::move(steps)) {}
  std::shared_ptr<api::BalancedSteps> steps_;
};

}  // namespace bimetal
