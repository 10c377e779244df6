#pragma once
// Data parallelism for a program's own training loop, whole on every rank or in shards (ZeRO).

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/modules/container/sequential.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "bimetal/api/job.h"
#include "bimetal/api/options.h"
#include "bimetal/api/task.h"

namespace bimetal {

/// The layers of a torch::nn::Sequential, each a unit.
task::Model layers_of(const std::shared_ptr<torch::nn::SequentialImpl>& module);

/// A module as units: layers_of() a torch::nn::Sequential, any other as one unit.
/// DataParallel::forward works only for a module whose forward takes one tensor and returns one.
template <typename Contained>
task::Model units_of(const torch::nn::ModuleHolder<Contained>& holder) {
  const std::shared_ptr<Contained> module = holder.ptr();
  if constexpr (std::is_same_v<Contained, torch::nn::SequentialImpl>) {
    return layers_of(module);
  } else if constexpr (requires(torch::Tensor x) {
                         { module->forward(x) } -> std::same_as<torch::Tensor>;
                       }) {
    return {
        {task::make_unit("", module, [module](torch::Tensor x) { return module->forward(x); })}};
  } else {
    return {{task::make_unit("", module, std::function<task::Values(const task::Values&)>())}};
  }
}

/// Owns the gradients' way to the other ranks of one model on this rank. Use from one thread.
class DataParallel {
 public:
  /// Makes the task's model on the job's device, with the same parameters on every rank.
  /// Collective. Errors: CallMismatch where ranks have other options; InvalidArgument for two
  /// tensors of one name, a model in float64, those of task::require_exact, and options that do not
  /// go together; those of Task::make_model and of the store's constructor
  /// (parallel::ReplicatedModel, parallel::shard::ShardedModel).
  DataParallel(std::shared_ptr<const task::Task> task, const Job& job,
               DataParallelOptions options = {});

  /// Moves `model` to the job's device and gives every rank rank 0's parameters. Make the optimizer
  /// of parameters() afterwards. Collective. Errors as above; InvalidArgument at zero.level 3 for a
  /// model of which forward() is not known.
  DataParallel(task::Model model, const Job& job, DataParallelOptions options = {});

  /// The same for a module holder, such as TORCH_MODULE makes: units_of(model).
  template <typename Contained>
  DataParallel(const torch::nn::ModuleHolder<Contained>& model, const Job& job,
               DataParallelOptions options = {})
      : DataParallel(units_of(model), model.ptr(), job, std::move(options)) {}
  /// The same of any module, whose forward is not known: the program calls it.
  DataParallel(std::shared_ptr<torch::nn::Module> model, const Job& job,
               DataParallelOptions options = {});

  ~DataParallel();

  /// For an optimizer: the model's parameters, or this rank's pieces of them (zero.level 1 to 3).
  std::vector<torch::Tensor> parameters() const;
  /// For bimetal::save and bimetal::load, but at zero.level 3, whose values are not there.
  const task::ModelState& model() const noexcept;

  /// The model's output for a batch's tensor, or tensors. At zero.level 3 this is the only way to
  /// run the model, and only within the functions that step() and evaluate() are given.
  /// Error(InvalidArgument) otherwise, and for a model whose forward is not known.
  torch::Tensor forward(const torch::Tensor& x) const;
  task::Values forward(const task::Values& inputs) const;  ///< of several tensors; as above

  /// The mean loss over some of this rank's samples: over their weight, as of tokens.
  using MeanLoss = std::function<torch::Tensor(const Batch& piece)>;

  /// The step of the batch that Job::balanced handed out last: `mean_loss` of each piece of this
  /// rank's share, at most `micro_batch` samples, in the precision of the options, and its
  /// backward. The exchange begins while the last backward runs. Then `optimizer` steps. All ranks
  /// hold the gradient of the mean over the global batch. It is not called where the share is
  /// empty. Collective. Errors: InvalidArgument for an optimizer that has tensors which are not
  /// parameters(), or none that are trained, for parameters frozen or set to be trained since, for
  /// gradients of a backward() outside of step(), and task::require_exact's; NotFinite, on every
  /// rank and before anything is updated, naming step and rank; the fabric's. An error on this rank
  /// alone, in `mean_loss` or before, ends the job on the others with its text and this rank.
  void step(torch::optim::Optimizer& optimizer, const MeanLoss& mean_loss);

  /// The same of a loss that has been computed already, in one piece. Errors likewise;
  /// InvalidArgument with a precision below float32, a micro_batch or zero.level 3, which have to
  /// do with the forward pass.
  void step(const torch::Tensor& mean_loss, torch::optim::Optimizer& optimizer);

  /// For a model of a task: each piece's loss is the task's. Errors: InvalidArgument without a
  /// task, and as above; the task's own.
  void step(torch::optim::Optimizer& optimizer);

  /// The task's loss and metrics on its evaluation data, computed by all ranks together.
  /// Collective. Error(InvalidArgument) without a task, or without such data.
  progress::Evaluation evaluate();

  /// The same for any data: `sums` gives, for a batch, the sum of the losses and of each of
  /// `metrics` over its samples, one number each, in evaluation mode and without gradients. The
  /// result has the means over all samples' weight. Collective. Errors: InvalidArgument if `sums`
  /// gives more or fewer; an error on this rank alone acts as in step().
  progress::Evaluation evaluate(std::shared_ptr<const task::Dataset> data,
                                const std::function<task::Values(const Batch& batch)>& sums,
                                std::vector<std::string> metrics = {});

  /// Saves model, optimizer, loss scale and the place in Job::balanced's data as a checkpoint in
  /// rank 0's folder `dir`, which keeps the last `keep`; returns its path there. Jobs of any number
  /// of ranks, any zero.level, and `bimetal train` go on with it: docs/checkpoints.md. After a
  /// step. Collective. Errors: those of checkpoint::save_checkpoint.
  std::filesystem::path save(const std::filesystem::path& dir, torch::optim::Optimizer& optimizer,
                             std::int64_t keep = 2);

  /// Goes on with the last checkpoint in rank 0's folder `dir`: BalancedOptions::from takes the
  /// result. Nothing if there is none. Before the first step. Collective. Errors: those of
  /// checkpoint::load_checkpoint.
  std::optional<StartingPoint> resume(const std::filesystem::path& dir,
                                      torch::optim::Optimizer& optimizer);

  /// The model's parameters and buffers as a safetensors file, which rank 0 writes, whatever
  /// zero.level. Collective. Errors: those of bimetal::save.
  void save_model(const std::filesystem::path& path);

 private:
  DataParallel(task::Model units, std::shared_ptr<torch::nn::Module> owner, const Job& job,
               DataParallelOptions options);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal
