#pragma once
// The model of a run, its optimizer and where both live: whole on every rank, or in shards. What
// begins at a checkpoint, and becomes the next one.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/progress/observer.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/unit.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {

/// What weighs the ranks' shards: zero.shards. `speeds`: of each rank, any unit. Collective where
/// memory decides: what each rank's `device` has free. Error(InvalidArgument) for weights that are
/// not one for each rank.
std::vector<double> shard_weights(const job::JobConfig& job, comm::Group group,
                                  const torch::Device& device, std::span<const double> speeds);

/// Use from one thread.
class TrainedModel {
 public:
  /// A model of `task` with the values of rank 0's checkpoint `resume`, or its own; every rank's
  /// become those. Hollow ones are for level 3. `shards`: as shard_weights() has them. Collective.
  /// Errors: those of checkpoint::starting_point, and of the store's constructor; Unsupported for
  /// shards of a task with an optimizer of its own.
  TrainedModel(const job::JobConfig& job, comm::Group group, const task::JobTask& task,
               const StartingModel& start, const std::optional<std::filesystem::path>& resume,
               progress::Observer& observer, const parallel::ReplicatedModelOptions& options,
               const std::vector<double>& shards);

  /// What to compute with.
  const task::Model& model() const noexcept { return sharded_ ? sharded_->model() : whole_; }
  torch::optim::Optimizer& optimizer() noexcept { return *optimizer_; }
  const std::shared_ptr<parallel::ParameterStore>& store() const noexcept { return store_; }
  checkpoint::TrainingState& state() noexcept { return state_; }

  /// Due after an evaluation, before the ranks meet.
  void end_passes() const;

  /// Each rank what it keeps: as checkpoint::save_shared_checkpoint, or save_slices where that is
  /// shards. Collective; the path is rank 0's.
  std::filesystem::path save();

  /// As checkpoint::require_finite_parameters.
  void require_finite() const;

 private:
  void begin_in_shards(const StartingModel& start,
                       const std::optional<std::filesystem::path>& resume,
                       const std::vector<double>& weights, progress::Observer& observer);
  void cut(const std::vector<double>& weights, bool hollow, progress::Observer& observer);

  const job::JobConfig& job_;
  comm::Group group_;
  task::Model whole_;  ///< its parameters are views of the shards' flat tensors where there are any
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  checkpoint::OptimizerFacts optimizer_facts_;  ///< with shards: of one of whole tensors
  checkpoint::TrainingState state_;
  std::shared_ptr<parallel::ParameterStore> store_;
  std::shared_ptr<parallel::shard::ShardedModel> sharded_;  ///< the same, from level 1 on
};

}  // namespace bimetal::train
