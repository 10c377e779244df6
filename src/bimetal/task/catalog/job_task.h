#pragma once
// A task that a job file names.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "bimetal/checkpoint/model_description.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/job/job_config.h"
#include "bimetal/task/task.h"

namespace bimetal::task {

class JobTask : public Task {
 public:
  /// What checkpoints say of its model.
  virtual const checkpoint::ModelDescription& description() const = 0;

  /// An optimizer of the task's own over all trained parameters of one of its models, in their
  /// order; nullptr: the job's (train.optimizer).
  virtual std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& /*parameters*/) const {
    return nullptr;
  }
  virtual bool has_optimizer() const { return false; }

  /// Its training samples without what chance changes in them: to judge a model by.
  virtual std::shared_ptr<const Dataset> training_unchanged() const { return training(); }

  /// What its samples' weights count, for people to read: "images" or "tokens".
  virtual std::string counts() const = 0;

  /// What the user should know of the data although it works: images that were left out.
  virtual std::vector<std::string> notices() const { return {}; }
};

/// The task of a job whose data set share_dataset or find_job_data has found: loads it. Its batches
/// are of train.dtype. Errors: CorruptData for damaged files; InvalidArgument for a model and data
/// that do not fit each other, and those of data::load_tokens; from make_model() those of
/// models::make_model.
std::shared_ptr<const JobTask> make_task(const job::JobConfig& job,
                                         const data::DatasetFiles& files);

}  // namespace bimetal::task
