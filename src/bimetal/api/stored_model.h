#pragma once
// A program's own model where DataParallel keeps it, whole or in shards, and on its way to files
// and back. Private to api.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/api/options.h"
#include "bimetal/api/saved_slices.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/task/model_state.h"
#include "bimetal/task/unit.h"

namespace bimetal::api {

/// What all ranks must have alike of them.
std::vector<std::string> facts_of(const ZeroOptions& zero);

/// Use from one thread.
class StoredModel {
 public:
  /// Collective. Errors: InvalidArgument for options that make no sense; those of
  /// parallel::ReplicatedModel's or parallel::shard::ShardedModel's constructor.
  StoredModel(const task::Model& whole, comm::Group group, const torch::Device& device,
              const DataParallelOptions& options);

  const task::ModelState& model() const noexcept { return model_; }
  /// What to compute with.
  const task::Model& units() const noexcept { return sharded_ ? sharded_->model() : whole_; }
  parallel::ParameterStore& store() const noexcept { return *store_; }
  /// What an optimizer is to be made of.
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
  KeptOfModel kept() const;
  checkpoint::TrainingState resume_whole(const std::filesystem::path& from,
                                         torch::optim::Optimizer& optimizer);

  task::Model whole_;
  task::ModelState model_;
  comm::Group group_;
  ZeroOptions zero_;
  std::size_t message_bytes_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<parallel::shard::ShardedModel> sharded_;
  std::shared_ptr<parallel::ParameterStore> store_;
  std::optional<std::uint64_t> term_;  ///< of checkpoints, once there are any
};

}  // namespace bimetal::api
