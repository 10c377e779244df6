#pragma once
// A program's own model where DataParallel and Pipeline keep it, whole, in shards, or each rank its
// part of it, and on its way to files and back. Private to api.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/api/given.h"
#include "bimetal/api/options.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/sync.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal::api {

/// The options that must be the same on all ranks.
std::vector<std::string> facts_of(const ZeroOptions& zero);

/// The part of a model that one rank of a mesh has.
struct PartOfModel {
  std::shared_ptr<const parallel::Mesh> mesh = {};  ///< none: it has all of it
  parallel::ModelPart own = {};
  /// The whole model and each stage: only names, sizes and types.
  task::ModelState whole = {};
  std::vector<task::ModelState> stages = {};
};

/// Takes this rank's part of `whole`, which has the same values on all ranks. The memory of other
/// ranks' parts goes. Collective. Errors: those of parallel::take_part.
PartOfModel part_of(const std::shared_ptr<const parallel::Mesh>& mesh, const task::Model& whole,
                    const std::vector<std::size_t>& begins, const parallel::PartWeights& weights,
                    bool sequence_parallel, std::chrono::milliseconds timeout);

/// Use from one thread.
class StoredModel {
 public:
  /// `whole`: all of it, or with a `part` that. Collective over `group`, which are all ranks.
  /// Errors: InvalidArgument for options that make no sense; those of parallel::ReplicatedModel's
  /// or parallel::shard::ShardedModel's constructor.
  StoredModel(const task::Model& whole, comm::Group group, const torch::Device& device,
              ZeroOptions zero, const parallel::ReplicatedModelOptions& parallel,
              PartOfModel part = {});

  const task::ModelState& model() const noexcept { return model_; }
  /// The units to compute with.
  const task::Model& units() const noexcept { return sharded_ ? sharded_->model() : whole_; }
  parallel::ParameterStore& store() const noexcept { return *store_; }
  /// The exchange of all ranks for a step, around that store.
  parallel::Sync& sync() noexcept { return sync_; }
  /// For a part of a model: what computes it, and the ranks that it is summed with.
  const parallel::ModelPart& part() const noexcept { return part_.own; }
  const std::shared_ptr<parallel::pipeline::StageSums>& stage_sums() const noexcept {
    return stage_sums_;
  }
  /// The tensors that an optimizer is to be made of.
  std::vector<torch::Tensor> optimized() const;
  /// Error(InvalidArgument), where it gets pieces of tensors, unless it works element by element.
  void require_steps_pieces(const torch::optim::Optimizer& optimizer) const;

  /// Its states go where ZeroOptions::offload_optimizer has them. Error(InvalidArgument) for an
  /// optimizer that cannot keep them there; StateFile's.
  void place_states(torch::optim::Optimizer& optimizer) const;

  /// Around passes outside of a step. Collective.
  void begin_passes() const;
  void end_passes() const;

  /// `state`: all but what model and optimizer have in it, and the random numbers. Collective.
  std::filesystem::path save(const job::CheckpointConfig& config,
                             torch::optim::Optimizer& optimizer, checkpoint::TrainingState state);
  std::optional<checkpoint::TrainingState> resume(const std::filesystem::path& dir,
                                                  torch::optim::Optimizer& optimizer);
  void save_model(const std::filesystem::path& path) const;

 private:
  bool is_part() const noexcept { return part_.mesh != nullptr; }
  std::shared_ptr<parallel::shard::ShardedModel> make_shards(const torch::Device& device) const;
  void sum_with_other_parts();
  KeptOfModel kept() const;
  checkpoint::TrainingState resume_whole(const std::filesystem::path& from,
                                         torch::optim::Optimizer& optimizer);
  task::ModelState gathered(int root) const;
  void join_parts(task::ModelState& stage) const;

  task::Model whole_;
  task::ModelState model_;
  comm::Group group_;
  ZeroOptions zero_;
  std::size_t message_bytes_;
  std::chrono::milliseconds timeout_;
  PartOfModel part_;
  std::shared_ptr<parallel::shard::ShardedModel> sharded_;
  std::shared_ptr<parallel::ParameterStore> store_;
  std::shared_ptr<parallel::pipeline::StageSums> stage_sums_;  ///< of a part
  parallel::Sync sync_;
  std::optional<std::uint64_t> term_;  ///< of checkpoints, once there are any
};

}  // namespace bimetal::api
