#pragma once
// Data parallelism for a program's own training loop.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <memory>

#include "bimetal/api/job.h"
#include "bimetal/parallel/data/data_parallel.h"

namespace bimetal {

/// Owns the gradient hooks of one model on this rank. Use from one thread.
class DataParallel {
 public:
  /// Moves `model` to the job's device and gives every rank rank 0's parameters. Make the optimizer
  /// afterwards. Collective. Errors of parallel::DataParallel's constructor.
  DataParallel(std::shared_ptr<torch::nn::Module> model, const Job& job,
               parallel::DataParallelOptions options = {});

  /// The same for a module holder, such as TORCH_MODULE makes.
  template <typename Contained>
  DataParallel(const torch::nn::ModuleHolder<Contained>& model, const Job& job,
               parallel::DataParallelOptions options = {})
      : DataParallel(std::static_pointer_cast<torch::nn::Module>(model.ptr()), job, options) {}

  ~DataParallel();

  /// Ends the step of the batch that Job::balanced handed out last: backward of `mean_loss` (the
  /// mean over this rank's batch), the exchange while it runs, then `optimizer`. All ranks hold the
  /// gradient of the mean over the global batch. Collective. Errors: NotFinite, on every rank and
  /// before anything is updated, naming step and rank; the fabric's.
  void step(const torch::Tensor& mean_loss, torch::optim::Optimizer& optimizer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal
