#pragma once
// A task written in Python: its model's units, its data sets, loss and metrics are Python's
// callables, and everything that is done with them is the program's own.

#include <memory>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/python_host/hosted_dataset.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::python_host {

/// May be called by threads that do not hold the interpreter's lock, as every Task; not by those
/// that do.
class HostedTask final : public task::JobTask {
 public:
  /// `task`: bimetal.task.hosted.HostedTask, made for `job`. With the interpreter's lock.
  HostedTask(const pybind11::object& task, const job::JobConfig& job);

  task::Model make_model() const override;
  std::shared_ptr<const task::Dataset> training() const override { return training_; }
  std::shared_ptr<const task::Dataset> evaluation() const override { return evaluation_; }
  task::Values inputs(const task::Values& batch) const override;
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override { return metrics_; }
  std::vector<std::string> facts() const override { return facts_; }
  const checkpoint::ModelDescription& description() const override { return description_; }
  std::string counts() const override { return counts_; }

 private:
  Held make_units_, inputs_, loss_sum_;
  checkpoint::ModelDescription description_;
  std::shared_ptr<const HostedDataset> training_, evaluation_;
  std::vector<task::Metric> metrics_;
  std::vector<std::string> facts_;
  std::string counts_;
};

/// What job.model.python names, by bimetal.task.hosted.load. Errors: InvalidArgument with Python's
/// traceback.
std::shared_ptr<const task::JobTask> host_task(const job::JobConfig& job);

}  // namespace bimetal::python_host
