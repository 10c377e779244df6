#pragma once
// A rank's batches in order, each built on the prefetch thread while the one before it is computed.

#include <cstdint>
#include <optional>
#include <span>

#include "bimetal/data/dataset.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/data/sampler.h"

namespace bimetal::train {

/// Every rank drives its own feed with the same calls and the same shares. Because one step is
/// always drawn ahead, shares decided after step k are those of step k+2. Use from one thread.
class BatchFeed {
 public:
  struct Plan {
    data::EpochSampler::Step samples;  ///< of all ranks
    data::SamplerPosition before;      ///< where the step began
    data::SamplerPosition after;       ///< where the next one begins
    bool ends_epoch = false;
  };

  /// Gives batches until `epochs` epochs have been visited. `dataset` must outlive the feed.
  BatchFeed(const data::ImageDataset& dataset, data::EpochSampler sampler, int rank,
            std::int64_t epochs, torch::Dtype dtype, torch::Device device);

  /// Draws a step with these shares and starts to build its batch. Does nothing if one is drawn
  /// already or the last epoch has ended.
  void draw(std::span<const std::int64_t> shares);

  /// The step drawn last; nothing once all epochs have been visited.
  const std::optional<Plan>& next() const noexcept { return next_; }

  /// Waits for that step's batch and makes room for the next draw(). Rethrows what went wrong
  /// while the batch was built.
  data::Batch take();

  /// Forgets what was drawn; the next draw() begins at `position` again.
  void rewind(const data::SamplerPosition& position);

 private:
  data::EpochSampler sampler_;
  data::Prefetcher prefetcher_;
  int rank_;
  std::int64_t epochs_;
  std::optional<Plan> next_;
};

}  // namespace bimetal::train
