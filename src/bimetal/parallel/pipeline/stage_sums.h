#pragma once
// The parameters of a stage, as a step of the whole job sees them: replicas of the stage sum their
// gradients by a store of their own, and stages that have a tensor in common sum theirs.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/sync.h"
#include "bimetal/parallel/tensor/tensor_model.h"

namespace bimetal::parallel::pipeline {

/// What a store in shards is to know of a stage (ShardedModelOptions::stage) whose tied tensors are
/// these.
shard::StagePasses passes_of_stage(const Mesh& mesh, const std::vector<Tied>& tied);

/// Of the tensors that stages have in common. All ranks agree on each step.
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
  /// Of the ranks that have the same gradient, the first stage's first replica counts it, and there
  /// whoever does in `own`.
  bool counts(const torch::Tensor& whole) const override;
  const comm::Group* everyone() const noexcept override { return &world_; }
  /// Waiting for activations and gradients of other stages included, as far as add_wait() knows.
  double wait_seconds() const noexcept override { return waited_; }
  double communicate_seconds() const noexcept override { return waited_; }

  /// Of this stage among its replicas.
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
  /// Of the replicas that sum with each other's stages one stands for all.
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
