#pragma once
// A rank's batches in order, each built on the prefetch thread while the one before it is computed.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "bimetal/data/prefetch.h"
#include "bimetal/data/sampler.h"
#include "bimetal/task/dataset.h"

namespace bimetal::data {

/// Of the data set's samples with their weights; `group`: as EpochSampler has it.
EpochSampler make_sampler(const task::Dataset& dataset, std::uint64_t seed, std::int64_t group = 1);

/// Every rank drives its own feed with the same calls and the same shares. Because one step is
/// always drawn ahead, shares decided after step k are those of step k+2. Use from one thread.
class BatchFeed {
 public:
  struct Plan {
    EpochSampler::Step samples;  ///< of all ranks
    SamplerPosition before;      ///< where the step began
    SamplerPosition after;       ///< where the next one begins
    bool ends_epoch = false;
  };

  /// Gives batches of this rank's part of `global_batch` samples until `epochs` epochs have been
  /// visited.
  BatchFeed(std::shared_ptr<const task::Dataset> dataset, EpochSampler sampler, int rank,
            std::int64_t global_batch, std::int64_t epochs, torch::Device device);

  /// Draws a step with these shares (of its weight: EpochSampler::deal) and starts to build its
  /// batch. Does nothing if one is drawn already or the last epoch has ended.
  void draw(std::span<const std::int64_t> shares);

  /// The step drawn last; nothing once all epochs have been visited.
  const std::optional<Plan>& next() const noexcept { return next_; }

  /// Waits for that step's batch and makes room for the next draw(). Rethrows what went wrong
  /// while the batch was built.
  task::Values take();

  /// Forgets what was drawn; the next draw() begins at `position` again.
  void rewind(const SamplerPosition& position);

 private:
  EpochSampler sampler_;
  Prefetcher prefetcher_;
  int rank_;
  std::int64_t global_batch_;
  std::int64_t epochs_;
  std::optional<Plan> next_;
};

}  // namespace bimetal::data
