#pragma once
// Data parallelism for a program's own training loop.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "bimetal/api/job.h"
#include "bimetal/optim/clip.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/task/model_state.h"
#include "bimetal/task/task.h"

namespace bimetal {

/// How DataParallel computes a Task's batches.
struct ComputeOptions {
  /// Samples that are computed at once: 0 takes what suits the device (64 on a CPU, the whole share
  /// on an accelerator).
  std::int64_t micro_batch = 0;
  /// Activations that are dropped and computed again: as train.recompute (docs/recompute.md).
  std::string recompute = "none";
  std::uint64_t seed = 1;  ///< of the model's parameters
  /// The same on every rank; with float16 the loss is scaled, and steps that overflow are skipped
  /// by all ranks: docs/precision.md.
  precision::Precision precision = precision::Precision::float32;
  optim::GradientLimits limits = {};  ///< of the mean gradient, before each update
  parallel::ReplicatedModelOptions parallel = {};
};

/// Owns the gradient hooks of one model on this rank. Use from one thread.
class DataParallel {
 public:
  /// Makes the task's model on the job's device, with the same parameters on every rank.
  /// Collective. Errors: CallMismatch where ranks have other options; InvalidArgument for two
  /// tensors of one name, a model in float64, and those of task::require_exact; those of
  /// Task::make_model and parallel::ReplicatedModel's constructor.
  DataParallel(std::shared_ptr<const task::Task> task, const Job& job, ComputeOptions options = {});

  /// Moves `model` to the job's device and gives every rank rank 0's parameters. Make the optimizer
  /// afterwards. Collective. Errors of parallel::ReplicatedModel's constructor.
  DataParallel(std::shared_ptr<torch::nn::Module> model, const Job& job,
               parallel::ReplicatedModelOptions options = {});

  /// The same for a module holder, such as TORCH_MODULE makes.
  template <typename Contained>
  DataParallel(const torch::nn::ModuleHolder<Contained>& model, const Job& job,
               parallel::ReplicatedModelOptions options = {})
      : DataParallel(std::static_pointer_cast<torch::nn::Module>(model.ptr()), job, options) {}

  ~DataParallel();

  /// Of a task alone: forward, loss and backward of the batch that Job::balanced handed out last,
  /// in micro-batches, then as below. Ranks hold the gradient of the mean over all samples of the
  /// global batch, or over their tokens where samples have weights. Errors: InvalidArgument without
  /// a task, and as below; the task's own.
  void step(torch::optim::Optimizer& optimizer);

  /// The task's loss and metrics on its evaluation data, computed by all ranks together.
  /// Collective. Error(InvalidArgument) without a task, or without such data.
  progress::Evaluation evaluate();

  /// For an optimizer, and for bimetal::save.
  const task::ModelState& model() const noexcept;
  std::vector<torch::Tensor> parameters() const;

  /// Ends the step of the batch that Job::balanced handed out last: backward of `mean_loss` (the
  /// mean over this rank's batch: over its samples' weight), the exchange while it runs, then
  /// `optimizer`. All ranks hold the gradient of the mean over the global batch. Collective.
  /// Errors: InvalidArgument, before anything is exchanged, for an optimizer that has tensors which
  /// are not the model's or none of its trained ones, for parameters frozen or set to be trained
  /// since, for gradients of a backward() outside of step(), and task::require_exact's; NotFinite,
  /// on every rank and before anything is updated, naming step and rank; the fabric's.
  void step(const torch::Tensor& mean_loss, torch::optim::Optimizer& optimizer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal

namespace bimetal::api {

// What DataParallel asks of a model's tensors before each step. Private to api.

/// Of one model. Use from one thread.
class OwnTensors {
 public:
  /// Error(InvalidArgument) for two tensors of one name.
  explicit OwnTensors(const task::ModelState& model);

  /// Error(InvalidArgument) for tensors that have been frozen since, or are trained only now.
  void require_as_they_were() const;

  /// Error(InvalidArgument) for an optimizer with other tensors, or with none that is trained.
  void require_all_of(const torch::optim::Optimizer& optimizer) const;

  /// Error(InvalidArgument) for gradients that are not those of the last step: it would drop them.
  void require_untouched() const;
  /// At a step's end, however it comes: its gradients are known to the next require_untouched().
  class AfterStep {
   public:
    explicit AfterStep(OwnTensors& tensors) : tensors_(tensors) {}
    ~AfterStep() { tensors_.note_gradients(); }
    AfterStep(const AfterStep&) = delete;
    AfterStep& operator=(const AfterStep&) = delete;

   private:
    OwnTensors& tensors_;
  };

 private:
  void note_gradients();

  /// Of a gradient whose memory may go.
  struct Left {
    Left(const c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>& g, std::int64_t v)
        : gradient(g), version(v) {}
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> gradient;
    std::int64_t version;
  };

  std::vector<task::NamedTensor> trained_, frozen_;
  std::unordered_set<const c10::TensorImpl*> known_;
  std::vector<std::optional<Left>> left_;  ///< by the last step; as trained_
};

}  // namespace bimetal::api
