#pragma once
// A task written in Python: its model's units, its data sets, loss and metrics are Python's
// callables, and everything that is done with them is the program's own.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/optim/fused.h"
#include "bimetal/python/convert.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/task.h"

namespace bimetal::python {

// A data set written in Python.

class HostedDataset final : public task::Dataset {
 public:
  /// `dataset`: bimetal.task.hosted.HostedDataset; `dtype`: that of the floating-point tensors in
  /// batches. With the Python's lock.
  HostedDataset(const Object& dataset, torch::Dtype dtype);

  std::int64_t size() const override { return size_; }
  std::int64_t weight(std::int64_t sample) const override;
  task::Values batch(std::span<const std::int64_t> samples) const override;

 private:
  std::int64_t size_;
  std::vector<std::int64_t> weights_;  ///< empty: all weigh 1
  Held make_batch_;
  torch::Dtype dtype_;
};

// An optimizer of torch.optim, with its scheduler, as one that the program's step knows.

/// Use from one thread, one without the Python's lock.
class HostedOptimizer final : public optim::ForeignOptimizer {
 public:
  /// `hosted`: bimetal.task.hosted.HostedOptimizer over `parameters`. With Python's lock.
  HostedOptimizer(const Object& hosted, std::vector<torch::Tensor> parameters);

  /// One step of the optimizer and of its scheduler; state() then holds what both keep.
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  void take_restored();
  void show_state();

  Held hosted_;
  std::vector<torch::Tensor> parameters_;
  /// The state that this object has put into state(), for the first parameter. If another one is
  /// there, a checkpoint's state has replaced it.
  const torch::optim::OptimizerParamState* shown_ = nullptr;
};

/// May be called by threads that do not hold the Python's lock, as every Task; not by those
/// that do.
class HostedTask final : public task::JobTask {
 public:
  /// `task`: bimetal.task.hosted.HostedTask, made for `job`. With the Python's lock.
  HostedTask(const Object& task, const job::JobConfig& job);

  task::Model make_model() const override;
  std::shared_ptr<const task::Dataset> training() const override { return training_; }
  std::shared_ptr<const task::Dataset> evaluation() const override { return evaluation_; }
  task::Values inputs(const task::Values& batch) const override;
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override { return metrics_; }
  std::vector<std::string> facts() const override { return facts_; }
  const checkpoint::ModelDescription& description() const override { return description_; }
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& parameters) const override;
  bool has_optimizer() const override { return has_optimizer_; }
  std::string counts() const override { return counts_; }

 private:
  Held make_units_, inputs_, loss_sum_, make_optimizer_;
  checkpoint::ModelDescription description_;
  std::shared_ptr<const HostedDataset> training_, evaluation_;
  std::vector<task::Metric> metrics_;
  std::vector<std::string> facts_;
  std::string counts_;
  bool has_optimizer_;
};

/// The task that job.model.python names, by bimetal.task.hosted.load. Errors: InvalidArgument with
/// Python's traceback.
std::shared_ptr<const task::JobTask> host_task(const job::JobConfig& job);

}  // namespace bimetal::python
