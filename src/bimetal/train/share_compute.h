#pragma once
// What computes a rank's share of a step, whatever it has of the model: a replica, or a stage
// (pipeline/stage_compute.h).

#include <cstdint>
#include <functional>
#include <span>

#include "bimetal/parallel/sync.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/task/dropout.h"
#include "bimetal/train/compute.h"
#include "bimetal/train/replicas.h"

namespace bimetal::train {

/// Use from one thread.
class ShareCompute {
 public:
  virtual ~ShareCompute() = default;

  /// Whose samples are whose.
  virtual const Lanes& lanes() const noexcept = 0;

  /// Before a step in which this lane has so many samples. Collective.
  virtual void prepare(std::int64_t /*samples*/) {}
  /// As Compute::try_run, between the sync's begin_step() and sum_gradients().
  virtual Compute::Outcome try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                                   const task::Draws& draws) = 0;
  /// What the ranks have told of the step. The same on all of them.
  virtual void learn(std::span<const progress::RankFigures> /*figures*/) {}
};

/// Of a rank that has a whole replica, or a part of each of its tensors.
class ReplicaCompute final : public ShareCompute {
 public:
  /// `task` must outlive it.
  ReplicaCompute(const task::Task& task, const task::Model& model, const torch::Device& device,
                 parallel::Sync sync, const ComputeOptions& options);

  const Lanes& lanes() const noexcept override { return lanes_; }
  /// Ranks agree on their passes.
  void prepare(std::int64_t samples) override;
  Compute::Outcome try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                           const task::Draws& draws) override;

 private:
  parallel::Sync sync_;
  Lanes lanes_;
  Compute compute_;
  std::int64_t passes_ = 0;  ///< of the step under way, where ranks agree on them
};

}  // namespace bimetal::train
