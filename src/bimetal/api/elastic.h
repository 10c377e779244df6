#pragma once
// A program's own training loop whose workers come, go and are lost: docs/elastic.md.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bimetal/api/data_parallel.h"
#include "bimetal/api/job.h"
#include "bimetal/api/task.h"

namespace bimetal {

/// How a job goes on when workers come and go: [elastic] of the job file, docs/elastic.md. The same
/// on every rank.
struct ElasticOptions {
  /// With fewer the job waits `patience` for others, and ends. 0: what `bimetal launch
  /// --elastic=MIN` says, or 1.
  int min_workers = 0;
  int max_workers = 0;      ///< newcomers beyond that wait; 0: any number
  std::string keeper = {};  ///< the machine that goes on where half of the workers have lost the
                            ///< other half; empty: the first rank 0's; "either": each half
  std::chrono::milliseconds patience{std::chrono::minutes(1)};  ///< for enough workers to be there
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};   ///< for one that computes to come
};

/// Trains among workers that stay the same. `at`: for BalancedOptions::from; nothing before the
/// first step.
using ElasticTrain = std::function<void(const std::optional<StartingPoint>& at)>;

/// Calls `train(at)`, and again whenever workers were lost, have come or left, until it returns on
/// all of them. It makes its DataParallel of `model` and loops over Job::balanced from `at` on,
/// with `optimizer`: both are moved to the job's device here, and are every worker's after each
/// step. So each sample is used once, and the result is that of a job whose workers stay. The
/// function itself keeps track of anything else that it counts: `at` says where it is.
///
/// Returns false on a worker that has left (Job::leave). Afterwards Job::group is of the workers
/// that have come to the end. A change of workers ends the loop over Job::balanced, behind the
/// body of a step, with an exception that is no std::exception: catch (...) has to throw it on.
///
/// Collective, but for newcomers, which come while it runs. Errors: PeerLost where too few are left
/// to go on; Aborted, with the text, where another worker has failed by an error of its own;
/// whatever `train` throws that does not follow from a loss; InvalidArgument for options that make
/// no sense, and for another job than that of the workers who are there; Unsupported for ranks that
/// MPI connects, and, in `train`, for shards and stages: a part that only one rank holds would be
/// lost with it.
bool elastic(const Job& job, const task::Model& model, torch::optim::Optimizer& optimizer,
             const ElasticTrain& train, const ElasticOptions& options = {});
/// The same of any module.
bool elastic(const Job& job, const std::shared_ptr<torch::nn::Module>& model,
             torch::optim::Optimizer& optimizer, const ElasticTrain& train,
             const ElasticOptions& options = {});
/// The same of a module holder, such as TORCH_MODULE makes.
template <typename Contained>
bool elastic(const Job& job, const torch::nn::ModuleHolder<Contained>& model,
             torch::optim::Optimizer& optimizer, const ElasticTrain& train,
             const ElasticOptions& options = {}) {
  const std::shared_ptr<torch::nn::Module> module = model.ptr();
  return elastic(job, module, optimizer, train, options);
}

/// The same for models that each call of `train` makes anew, shards and stages too: it begins with
/// resume() and saves every few steps. Those behind the last checkpoint are made again.
bool elastic(const Job& job, const std::function<void()>& train,
             const ElasticOptions& options = {});

}  // namespace bimetal
