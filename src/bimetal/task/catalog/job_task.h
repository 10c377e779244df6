#pragma once
// A task that a job file names.
//
// The reference models on labelled images: cross-entropy and accuracy.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/checkpoint/model_file.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/job/job_config.h"
#include "bimetal/task/task.h"

namespace bimetal::task {

class JobTask : public Task {
 public:
  /// The description of its model in checkpoints.
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

  /// The unit that its samples' weights count, for people to read: "images" or "tokens".
  virtual std::string counts() const = 0;

  /// Notes on data that works but that the user should know of, such as images that were left out.
  virtual std::vector<std::string> notices() const { return {}; }
};

/// The task of a job whose data set share_dataset or find_job_data has found: loads it. Its batches
/// are of train.dtype. Errors: CorruptData for damaged files; InvalidArgument for a model and data
/// that do not fit each other, and those of data::load_tokens; from make_model() those of
/// models::make_model.
std::shared_ptr<const JobTask> make_task(const job::JobConfig& job,
                                         const data::DatasetFiles& files);

// How much a task's model computes.

/// Operations of each unit's forward for a sample of the training data
/// (models/language/language_model.h); empty where that is not known, as it is of language models
/// alone.
std::vector<double> unit_operations(const JobTask& task);

// Tasks written in Python. The code that makes them is not in this library. It is in the torch
// library that runs the program inside of Python (python/), which announces itself here.

/// Makes the task that job.model.python names. Errors: InvalidArgument with Python's traceback.
using PythonTaskMaker = std::function<std::shared_ptr<const JobTask>(const job::JobConfig& job)>;

/// Before any task is made; empty: this process has no Python (any more). Not for several threads.
void set_python_task_maker(PythonTaskMaker maker);

bool has_python_task_maker() noexcept;

/// True if the job's task is written in Python, and so brings its own data.
bool is_python_task(const job::JobConfig& job) noexcept;

/// By the maker. Error(Unsupported) if there is none.
std::shared_ptr<const JobTask> make_python_task(const job::JobConfig& job);

/// A batch is {images [b, C, H, W], labels int64 [b]}, the model's output {logits [b, classes]}.
class ImageClassification final : public JobTask {
 public:
  /// `model`, `hidden` and `norm_group`: as models::make_model takes them; `dtype`: "float32" or
  /// "float64", the type of the images in batches; `augment`: for training images.
  ImageClassification(const std::string& model, std::int64_t hidden, data::TrainTest data,
                      const std::string& dtype, data::Augment augment = data::Augment::No,
                      std::int64_t norm_group = 0);

  Model make_model() const override;
  std::shared_ptr<const Dataset> training() const override { return training_; }
  std::shared_ptr<const Dataset> evaluation() const override { return evaluation_; }
  std::shared_ptr<const Dataset> training_unchanged() const override;
  torch::Tensor loss_sum(const Values& outputs, const Values& batch) const override;
  std::vector<Metric> metrics() const override;
  std::vector<std::string> facts() const override;
  const checkpoint::ModelDescription& description() const override { return description_; }
  std::string counts() const override { return "images"; }
  std::vector<std::string> notices() const override;

 private:
  checkpoint::ModelDescription description_;
  std::vector<std::string> left_out_;
  std::shared_ptr<const data::ImageSet> training_, evaluation_;
};

}  // namespace bimetal::task
