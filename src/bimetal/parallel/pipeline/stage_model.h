#pragma once
// A stage's part of a model.
//
// The parameters of a stage, as a step of the whole job sees them: replicas of the stage sum their
// gradients by a store of their own, and stages that have a tensor in common sum theirs.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/sync.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

// Error feedback of gradients between stages. The loss of encoding one micro-batch is added to the
// next one, and from the last one of a step to the next step (lazy error propagation: Song et al.,
// "Optimus-CC", ASPLOS 2023).

/// The error feedback of one rank. For each place it keeps as much as the largest micro-batch's
/// gradients, in float32. Use from one thread.
class LostGradients {
 public:
  struct Place {
    int piece = 0;          ///< that computes the gradient
    std::size_t value = 0;  ///< which of those that it got
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  /// Adds what earlier ones of the place have lost to `floats` (float32, contiguous, on the CPU,
  /// the caller's own) and encodes that. Micro-batches may have unequal numbers of samples (their
  /// first dimension): errors of samples that a smaller one lacks wait. If micro-batches differ in
  /// other dimensions, errors are dropped. So are errors that are not finite.
  torch::Tensor encode(comm::Scheme scheme, const Place& place, torch::Tensor floats);

 private:
  std::map<Place, torch::Tensor> lost_;
};

/// A tensor that several stages have, as GPT-2's embedding and head: each has it whole, or in the
/// parts of its ranks.
struct Tied {
  torch::Tensor tensor;     ///< undefined on stages that have not
  std::vector<int> stages;  ///< that have it, rising
  std::string name = {};    ///< in the whole model
};

/// Tensors have the names that they have in the whole model: a tied one's first, on all stages.
struct StageModel {
  std::vector<task::Model> pieces;  ///< by chunk: this stage's piece of each round
  task::Model model;                ///< the units of all of them
  std::vector<Tied> tied;           ///< the whole model's, in the same order on every stage
};

/// Where each of `pieces` pieces begins: 0 and then `cuts`. Error(InvalidArgument) for cuts that
/// are not one fewer than pieces, or not units of a model of so many, with values that would do.
/// `table`: the table in which the caller calls them "cuts".
std::vector<std::size_t> begins_of(const std::vector<std::int64_t>& cuts, std::size_t pieces,
                                   std::size_t units, const std::string& table = "mesh.");

/// Stage `stage`'s of `model`, cut at `begins` into stages · chunks pieces. Handles on the same
/// tensors. The stages of one model agree on all but their own tensors.
StageModel make_stage(const task::Model& model, const std::vector<std::size_t>& begins, int stages,
                      int stage);

/// `stage` with the units of `model`, one for each of its own and of the same tensors, in the place
/// of these.
StageModel with_units(StageModel stage, const task::Model& model);

/// "units 0-2 (embedding … h.1)", with several pieces "units 0-2, 6-7 (…)".
std::string describe_units(const task::Model& whole, const std::vector<std::size_t>& begins,
                           int stages, int stage);

/// The facts that a store in shards needs on a stage with these tied tensors
/// (ShardedModelOptions::stage).
shard::StagePasses passes_of_stage(const Mesh& mesh, const std::vector<Tied>& tied);

/// Sums the gradients of tensors that stages have in common. All ranks agree on each step.
class StageSums final : public ExtraSums {
 public:
  /// `own`: among mesh.replicas(), which have the same gradients until they are reduced; in shards
  /// it has passes_of_stage(). Tied tensors are those of make_stage(); `parts`: where this stage's
  /// tensors are in parts. Collective over the mesh.
  StageSums(std::shared_ptr<const Mesh> mesh, std::shared_ptr<ParameterStore> own,
            const std::vector<Tied>& tied, std::chrono::milliseconds timeout,
            std::shared_ptr<const tensor::TensorModel> parts = nullptr);

  void begin_step() override { waited_ = 0; }
  void before_replicas() override;
  void after_replicas() override;
  /// Among the ranks with the same gradient, the first stage's first replica counts it. There the
  /// rank does that counts in `own`.
  bool counts(const torch::Tensor& whole) const override;
  const comm::Group* everyone() const noexcept override { return &world_; }
  /// Waiting for activations and gradients of other stages included, as far as add_wait() knows.
  double wait_seconds() const noexcept override { return waited_; }
  double communicate_seconds() const noexcept override { return waited_; }

  /// The store of this stage among its replicas.
  ParameterStore& store() const noexcept { return *own_; }
  void add_wait(double seconds) noexcept { waited_ += seconds; }

 private:
  struct Shared {
    torch::Tensor tensor;
    comm::Group stages;    ///< those that have it
    bool counted = false;  ///< here
    std::string cut = {};  ///< its name, where whole ones are summed, and here is a part
    bool given = true;     ///< from here; else another part's rank gives the same
  };

  /// Shards are of gradients that the stages have summed.
  bool sums_first() const noexcept { return own_->in_shards() && !shared_.empty(); }
  /// Among replicas that sum with each other's stages, one stands for all.
  bool stands_for_stage() const { return mesh_->own_replica() == 0; }
  Shared shared_with(comm::Group stages, const Tied& tied) const;
  void sum_shared(bool replicas_have_summed);
  void sum(Shared& shared, bool replicas_have_summed) const;
  torch::Tensor whole_with(const std::string& name, const torch::Tensor& part) const;

  std::shared_ptr<const Mesh> mesh_;
  comm::Group world_;
  std::shared_ptr<ParameterStore> own_;
  std::shared_ptr<const tensor::TensorModel> parts_;
  std::vector<Shared> shared_;
  std::chrono::milliseconds timeout_;
  double waited_ = 0;
};

}  // namespace bimetal::parallel::pipeline
