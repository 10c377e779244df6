#pragma once
// A rank's stage in a training loop of the user's, as with modules in Python. The loop tells it the
// micro-batches of a batch, and it calls back for the forward of each.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/device/out_of_memory.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel::pipeline {

struct LoopStageOptions {
  schedule::Kind schedule = schedule::Kind::one_f_one_b;
  int chunks = 1;     ///< pieces of the model per stage
  bool split = true;  ///< as RunnerOptions has it
  ActivationCompression compression = {};
  torch::Device device{torch::kCPU};
  std::size_t bucket_bytes = 25u << 20;
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  /// For exceptions of forward and backward, but not the fabric's: whether this process means to go
  /// on. The other stages then get word instead of activations. Left out: it always does.
  std::function<bool(const std::exception_ptr&)> survivable = {};
  /// Whether such an error says that there was no memory.
  std::function<bool(const std::exception_ptr&)> out_of_memory = device::is_out_of_memory;
  RunnerOptions::Around around = {};  ///< each action's computation; may be left out
};

/// The contents of a batch.
struct LoopBatch {
  std::vector<std::int64_t> samples;  ///< of each micro-batch
  std::int64_t weight = 0;            ///< over which its loss is the mean: samples, or tokens
  std::int64_t digest = 0;            ///< by which the ranks of a replica see that all have it
};

/// Use from one thread. All ranks make the same calls; replicas of a stage have batches of their
/// own.
class LoopStage {
 public:
  /// Maps the previous stage's outputs (nothing where the model begins) to the next stage's inputs.
  /// Where the model ends, it returns one number: the sum of the loss.
  using Forward =
      std::function<task::Values(int chunk, int micro_batch, const task::Values& inputs)>;

  /// `own`: this stage's part of the model. `tied`: as make_stage() has them. Copies the first
  /// replica's values to the others. Collective. Errors: Mesh's, and ReplicatedModel's.
  LoopStage(comm::Group world, const MeshShape& shape, const task::ModelState& own,
            const std::vector<Tied>& tied, LoopStageOptions options);

  /// Forward and backward of a batch. Adds `scale` times the gradients of the mean over all
  /// replicas' batches to the parameters' gradients, and returns that mean, on every rank. Nothing,
  /// on every rank, if one has run out of memory for micro-batches that can be cut further: then
  /// repeat it in more of them. If a rank's forward or backward throws otherwise, that is rethrown
  /// there, and all others get Error(Aborted) that names it; so do they where a rank has no memory
  /// for a copy of the gradients that it had. In all of these cases nothing is added anywhere, as
  /// after errors of the fabric. Error(InvalidArgument) for batches of no weight,
  /// Error(CallMismatch) where ranks of a replica have unlike ones, before anything is computed.
  std::optional<double> train(const LoopBatch& batch, double scale, const Forward& forward);

  /// The mean alone. Errors as train() has them.
  std::optional<double> evaluate(const LoopBatch& batch, const Forward& forward);

  /// Whether the gradient of `parameter` counts here for a norm over all ranks.
  bool counts(const torch::Tensor& parameter) const { return sync_.counts(parameter); }

  const Mesh& mesh() const noexcept { return *mesh_; }

 private:
  /// How a rank has done with a batch.
  enum class Fared { well, failed, needs_smaller };

  Deadline deadline() const { return Deadline::after(options_.timeout); }
  /// Once it is certain that all ranks mean the same. `failure`: the error for which this rank
  /// cannot begin. It is rethrown when all know of it.
  std::int64_t weight_of_all(const LoopBatch& own, const std::exception_ptr& failure) const;
  StageWork work_of(const Forward& forward) const;
  /// Leaves no error, and room on the device, where a batch in smaller pieces may do.
  Fared fared(const LoopBatch& batch, std::exception_ptr& error) const;
  /// The sum over all ranks, once each knows how all have fared; nothing: as train() has it.
  std::optional<double> agree(const LoopBatch& batch, Runner::Result result) const;
  std::vector<torch::Tensor> take_gradients();
  void put_gradients(const std::vector<torch::Tensor>& kept);
  void add_gradients(const std::vector<torch::Tensor>& kept);

  const LoopStageOptions options_;
  std::shared_ptr<const Mesh> mesh_;
  std::vector<torch::Tensor> parameters_;  ///< that are trained
  Sync sync_;
  Runner runner_;
};

}  // namespace bimetal::parallel::pipeline
