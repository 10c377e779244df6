#pragma once
// Builds the next batch on a thread of its own while the device computes.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "bimetal/data/sampler.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/task.h"

namespace bimetal::data {

/// One batch ahead: request() starts building, take() waits for it. Not thread-safe itself: one
/// owner. Building is computation alone, so that no wait here can last longer than its work.
class Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const task::Dataset> dataset, torch::Device device);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// A batch of the samples of `draws`, built in their scope. Error(InvalidArgument) while an
  /// earlier request is neither taken nor discarded.
  void request(task::Draws draws);

  /// The requested batch, on the device. Rethrows what went wrong while building it; after that
  /// the next request() works. Error(InvalidArgument) if nothing was requested.
  task::Values take();

  /// Forgets a request, if there is one (the shares changed).
  void discard();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A rank's batches in order, each built on the prefetch thread while the one before it is computed.

/// A sampler of the data set's samples with their weights; `group`: as EpochSampler has it.
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

  /// Draws a step with these shares (parts of its weight: EpochSampler::deal) and starts to build
  /// its batch. Does nothing if one is drawn already or the last epoch has ended.
  void draw(std::span<const std::int64_t> shares);

  /// The step drawn last; nothing once all epochs have been visited.
  const std::optional<Plan>& next() const noexcept { return next_; }

  /// Waits for that step's batch and makes room for the next draw(). Rethrows what went wrong
  /// while the batch was built.
  task::Values take();

  /// Forgets the drawn step; the next draw() begins at `position` again.
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
