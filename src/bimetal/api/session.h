#pragma once
// What a process's Job handles and trainers share. Private to api.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "bimetal/api/balanced_steps.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/optim/clip.h"
#include "bimetal/precision/precision.h"
#include "bimetal/train/collective_update.h"

namespace bimetal::api {

/// `loss_scale`: of float16, which alone is scaled; 0 finds it out.
train::UpdateOptions update_options(precision::Precision precision, double loss_scale,
                                    const optim::GradientLimits& limits);

class Session {
 public:
  /// Applies the worker's limits to this process and picks its device.
  Session(comm::Group group, const job::WorkerSpec& worker, int local_rank, int local_world_size);

  const comm::Group& group() const noexcept { return group_; }
  const torch::Device& device() const noexcept { return device_; }
  double speed() const noexcept { return speed_; }

  /// Who computes which part of a batch; before loops.
  const train::Lanes& lanes() const noexcept { return lanes_; }
  void set_lanes(const train::Lanes& lanes) { lanes_ = lanes; }

  /// Begins a loop; the one before it is over. Loops over as many samples with one seed go on with
  /// the epochs of each other. Collective.
  std::shared_ptr<BalancedSteps> begin(std::shared_ptr<const task::Dataset> dataset,
                                       const BalancedOptions& options);

  /// The loop that runs. Error(InvalidArgument) if none was begun.
  BalancedSteps& steps() const;

  void count_step() noexcept { ++steps_done_; }

  /// For a checkpoint after a step of `update`: all but what the model's owner has.
  checkpoint::TrainingState state_after(train::CollectiveUpdate& update) const;
  /// The way back. Returns what a loop has to know of it.
  StartingPoint go_on_with(const checkpoint::TrainingState& state, train::CollectiveUpdate& update);

 private:
  comm::Group group_;
  train::Lanes lanes_;
  double speed_;
  std::int64_t steps_done_ = 0;  ///< of all loops so far, those before a checkpoint included
  torch::Device device_{torch::kCPU};
  std::shared_ptr<BalancedSteps> steps_;
  using Order = std::pair<std::int64_t, std::uint64_t>;  ///< what it depends on: samples and seed
  Order under_way_;                                      ///< that of steps_
  std::map<Order, std::int64_t> next_epochs_;            ///< of loops that are over
};

}  // namespace bimetal::api
