#pragma once
// One optimizer step of one rank: its share of the batch in micro-batches, then the update that all
// ranks make together.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bimetal/comm/group.h"
#include "bimetal/data/sampler.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/sync.h"
#include "bimetal/task/task.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {

struct StepOptions {
  torch::Device device{torch::kCPU};
  double speed = 1.0;  ///< emulated: see device::pause_for_speed. Stages have one of their own
  std::int64_t micro_batch = 0;  ///< as train.micro_batch
  std::uint64_t seed = 0;        ///< of what units draw: task/dropout.h
  precision::Precision precision = precision::Precision::float32;
  bool channels_last = false;      ///< what convolutions get: task::in_channels_last
  std::string recompute = "none";  ///< as train.recompute
  bool graphs = false;             ///< as train.graphs
  UpdateOptions update = {};
  parallel::ReplicatedModelOptions parallel = {};
  /// Computes this rank's share if it has a stage of the model. None: it has the whole model.
  std::shared_ptr<ShareCompute> stage = nullptr;
  /// Called between a share and the update: until it returns, nothing that is learnt changes.
  std::function<void()> before_update = [] {};
};

/// Use from one thread.
class TrainingStep {
 public:
  /// Collective: parallel::ReplicatedModel's constructor compares and broadcasts the parameters.
  /// `task` and `optimizer` must outlive it.
  TrainingStep(const task::Task& task, const task::Model& model, torch::optim::Optimizer& optimizer,
               comm::Group group, StepOptions options);

  /// The same with parameters, gradients and their sums wherever `sync` keeps and brings them.
  /// `model` is the one to compute with: for shards, their own. Collective. Error(Unsupported) for
  /// a loss scale or limits of gradients where parameters are updated in backward.
  TrainingStep(const task::Task& task, const task::Model& model, torch::optim::Optimizer& optimizer,
               parallel::Sync sync, StepOptions options);

  /// Runs step number `step` over the samples of `plan`, which are by lane, the same on every rank.
  /// `fetch` gives this lane's batch (0 samples: it takes part without computing). `wishes` and
  /// `shadow` are told to all. Collective.
  ///
  /// When a share does not fit into its device's memory, that rank first recomputes activations
  /// (Fit::try_recomputing), then computes it in smaller micro-batches (Fit::try_smaller_pieces);
  /// when they are as small as they get, or the batch itself cannot be held, its share must shrink
  /// (Fit::too_large). Either way every rank discards the step. Errors: those of
  /// CollectiveUpdate::run; whatever else `fetch` or the model throws, on this rank alone.
  StepResult run(std::int64_t step, const data::EpochSampler::Step& plan,
                 const std::function<task::Values()>& fetch, progress::Wishes wishes = {},
                 progress::ShadowFigures shadow = {});

  /// As CollectiveUpdate has it: the open figures of the last step's result.
  std::optional<EarlierStep> read_late() { return update_.read_late(); }

  /// The stages that the summed gradients go through; used between steps alone.
  GradientStages& stages() noexcept { return update_.stages(); }

  /// The ranks' agreement on the update; used when a rank is lost.
  CollectiveUpdate& update() noexcept { return update_; }

  /// The store of parameters and gradients; used between steps alone.
  parallel::ParameterStore& store() noexcept { return sync_.store(); }

  /// Copies the buffers of rank `root` (running means and the like) to all. Collective.
  void broadcast_buffers(int root) { store().broadcast_buffers(root); }

 private:
  progress::RankFigures compute(const data::EpochSampler::Step& plan,
                                const std::function<task::Values()>& fetch);
  bool unwatched() const;
  bool decides_there() const;
  bool reads_later() const;

  torch::optim::Optimizer& optimizer_;
  StepOptions options_;
  parallel::Sync sync_;
  torch::Tensor scale_;  ///< of the step under way, where the device has it
  std::shared_ptr<ShareCompute> share_;
  CollectiveUpdate update_;
  device::StreamTimer timer_;     ///< of a share that nobody waits for
  std::optional<Unread> unread_;  ///< of the step under way
};

}  // namespace bimetal::train
