#pragma once
// The model of a run, its optimizer, and their layout over the ranks of an epoch: whole on every
// rank, in shards, or each rank its part of a mesh. It begins at a checkpoint, and becomes the next
// one.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/sync.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/progress/observer.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/unit.h"
#include "bimetal/train/piece_states.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "bimetal/train/pipeline/mesh_notice.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {

/// The state that a run has learnt, whichever ranks train it. A model that every rank has whole is
/// trained in place, with its optimizer: both are here after each step, whatever happens to the
/// other ranks. Shards and parts of a mesh end with the ranks that have them: they are here as a
/// checkpoint of `state.step`, in `saved`, written by those ranks before they part.
struct Learnt {
  bool begun = false;
  task::Model model = {};                                   ///< whole, or none
  std::shared_ptr<torch::optim::Optimizer> optimizer = {};  ///< of it
  checkpoint::TrainingState state = {};
  std::optional<std::filesystem::path> saved = {};  ///< before the first epoch: what to begin with
};

/// A model as the job begins it, and its optimizer, unless they are there. `ranks`: those who
/// train.
void make_whole(const job::JobConfig& job, int ranks,
                const std::shared_ptr<const task::JobTask>& task, const device::Place& place,
                Learnt& learnt);

/// The weights of the ranks' shards: zero.shards. `speeds`: one for each rank, any unit. If memory
/// decides, each rank's `device` is asked for its free memory, and the call is collective.
/// Error(InvalidArgument) for weights that are not one for each rank.
std::vector<double> shard_weights(const job::JobConfig& job, comm::Group group,
                                  const torch::Device& device, std::span<const double> speeds);

/// How a model is cut into stages.
struct StagePlan {
  std::shared_ptr<const parallel::Mesh> mesh;  ///< none: it is not
  ChosenCuts cuts = {};

  /// "stage 1 of 3, replica 0, part 1 of 2".
  std::string name_of(int rank) const { return parallel::name_of(mesh->shape(), rank); }
};

/// Use from one thread.
class TrainedModel {
 public:
  /// `learnt`, which must outlive it, among the ranks of `group`: a model of `task` on `place` with
  /// the values of rank 0's checkpoint, or its own, where nothing has begun; every rank's become
  /// those of rank 0. `shards`: as shard_weights() has them. Collective. Errors: those of
  /// checkpoint::starting_point, and of the store's constructor; Unsupported for shards of a task
  /// with an optimizer of its own, and for shards or parts that have been trained since the
  /// checkpoint. `mesh`: as make_mesh() has it; with one, each rank keeps its part alone, as `cuts`
  /// has them. `half`: as RankPrecisions::half_of_all() has it.
  TrainedModel(const job::JobConfig& job, comm::Group group,
               const std::shared_ptr<const task::JobTask>& task, const device::Place& place,
               Learnt& learnt, progress::Observer& observer,
               const parallel::ReplicatedModelOptions& options, const std::vector<double>& shards,
               std::shared_ptr<const parallel::Mesh> mesh, const ChosenCuts& cuts,
               std::optional<torch::Dtype> half);

  /// The model to compute with; a stage's own units.
  const task::Model& model() const noexcept { return sharded_ ? sharded_->model() : whole_; }
  /// Those that compute its units together; nullptr: they are whole.
  std::shared_ptr<const parallel::tensor::GroupRanks> tensor_ranks() const noexcept {
    return tensor_ ? tensor_->ranks() : nullptr;
  }
  torch::optim::Optimizer& optimizer() noexcept { return *optimizer_; }
  /// nullptr: nothing is in shards.
  const parallel::shard::ShardedModel* sharded() const noexcept { return sharded_.get(); }
  const std::shared_ptr<parallel::ParameterStore>& store() const noexcept { return store_; }
  /// The exchange of all ranks for a step, around the store.
  const parallel::Sync& sync() const noexcept { return sync_; }

  /// If the model is cut into stages: this rank's stage, and the sums that it shares with others.
  const parallel::pipeline::StageModel& stage() const noexcept { return stage_; }
  const std::shared_ptr<parallel::pipeline::StageSums>& stage_sums() const noexcept {
    return stage_sums_;
  }

  /// Before an evaluation that goes by model(), collective; and after it, before the ranks meet.
  void begin_passes() const;
  void end_passes() const;

  /// Seconds that passes over model() have waited for other ranks so far, since any moment.
  double waited_seconds() const;

  /// As checkpoint::save_shared_checkpoint, or by slices (save_slices) if each rank keeps only a
  /// part. Collective; the path is rank 0's. However slow a disk, a rank that is stuck is found out
  /// after parallel.timeout_s.
  std::filesystem::path save();

  /// The same for the present state, to be called on another thread while training goes on, with
  /// copies in the host's memory. Nothing if some rank has no room for these, or keeps its part
  /// elsewhere. With shards and parts the ranks' calls meet in group_of_saves(). It makes those
  /// copies first that only updates would change: see wait_for_copies(). Collective.
  std::function<std::filesystem::path()> save_later();
  /// To be called before anything changes parameters or the optimizer's state.
  void wait_for_copies();
  /// None where rank 0 saves by itself.
  const comm::Group& group_of_saves() const noexcept { return group_of_saves_; }

  /// The same if shards are kept twice, by the remaining ranks, all at the same step. The shard of
  /// `lost` comes from its copy, and buffers from the `busiest` rank. The path is that of the first
  /// of `left`. Collective among them.
  std::filesystem::path save_without(int lost, comm::Group left, int busiest);

  /// As checkpoint::require_finite_parameters; by those who are left, or all.
  void require_finite() const { require_finite(group_); }
  void require_finite(comm::Group among) const;

 private:
  void take_up(checkpoint::TrainingState saved);
  void begin_whole(const std::shared_ptr<const task::JobTask>& task, const device::Place& place,
                   progress::Observer& observer, const parallel::ReplicatedModelOptions& options);
  void begin_in_shards(const StartingModel& start, const std::vector<double>& weights,
                       const parallel::ReplicatedModelOptions& options,
                       progress::Observer& observer);
  void cut(comm::Group group, const std::vector<double>& weights,
           const parallel::ReplicatedModelOptions& options, bool hollow,
           progress::Observer& observer);
  void begin_in_mesh(const StartingModel& start, const ChosenCuts& cuts,
                     const std::vector<double>& shards,
                     const parallel::ReplicatedModelOptions& options, const Operations& operations,
                     progress::Observer& observer);
  void begin_at(checkpoint::SharedReader& saved, progress::Observer& observer);
  void take_part(const ChosenCuts& cuts, bool hollow, const Operations& operations,
                 progress::Observer& observer, const parallel::ReplicatedModelOptions& options);
  KeptPieces kept_pieces() const;
  task::ModelState kept_whole() const;
  std::filesystem::path save_unwatched();
  checkpoint::OwnSlices slices_to_save();
  std::function<std::filesystem::path()> copy_to_save();

  const job::JobConfig& job_;
  comm::Group group_, group_of_saves_;
  std::future<void> copied_;  ///< of what save_later() has returned
  const std::optional<torch::Dtype> half_;
  task::Model whole_;  ///< its parameters are views of the shards' flat tensors where there are any
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  checkpoint::OptimizerFacts optimizer_facts_;  ///< of the whole model's, if slices are saved
  Learnt& learnt_;
  std::shared_ptr<parallel::ParameterStore> store_;
  parallel::Sync sync_;
  std::shared_ptr<parallel::shard::ShardedModel> sharded_;  ///< the same, from level 1 on
  std::shared_ptr<const parallel::Mesh> mesh_;              ///< where the model is cut
  parallel::pipeline::StageModel stage_;
  std::shared_ptr<parallel::pipeline::StageSums> stage_sums_;
  std::shared_ptr<const parallel::tensor::TensorModel> tensor_;  ///< where tensors are in parts
};

}  // namespace bimetal::train
