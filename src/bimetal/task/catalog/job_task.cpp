#include "bimetal/task/catalog/job_task.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/device/device.h"
#include "bimetal/models/language/language_model.h"

namespace bimetal::task {
namespace {

std::string digest_of_tensor(const torch::Tensor& tensor) {
  const auto whole = tensor.contiguous();
  const std::span bytes(static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes());
  return data::hex(data::digest_of(bytes), 16);
}

std::string fact(const char* name, const data::ImageDataset& set) {
  return fmt::format("{} data = {} samples, digests {} {}", name, set.size(),
                     digest_of_tensor(set.images), digest_of_tensor(set.labels));
}

checkpoint::ModelDescription describe(const std::string& model, std::int64_t hidden,
                                      std::int64_t norm_group, const data::ImageDataset& set,
                                      const std::string& dtype) {
  return {.name = model,
          .hidden = hidden,
          .norm_group = norm_group,
          .channels = set.images.size(1),
          .height = set.images.size(2),
          .width = set.images.size(3),
          .classes = set.classes,
          .dtype = dtype,
          .mean = set.mean,
          .stddev = set.stddev};
}

std::shared_ptr<const data::ImageSet> as_samples(data::ImageDataset set, const std::string& dtype,
                                                 data::Augment augment) {
  return std::make_shared<data::ImageSet>(std::move(set), device::dtype_named(dtype), augment);
}

}  // namespace

std::vector<double> unit_operations(const JobTask& task) {
  const auto& language = task.description().language;
  if (!language) return {};
  return models::forward_operations(*language, typical_weight(*task.training()));
}

namespace {

PythonTaskMaker& known_maker() {
  static PythonTaskMaker maker;
  return maker;
}

}  // namespace

void set_python_task_maker(PythonTaskMaker maker) {
  known_maker() = std::move(maker);
}

bool has_python_task_maker() noexcept {
  return static_cast<bool>(known_maker());
}

bool is_python_task(const job::JobConfig& job) noexcept {
  return !job.model.python.empty();
}

std::shared_ptr<const JobTask> make_python_task(const job::JobConfig& job) {
  if (!has_python_task_maker()) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("model.python = \"{}\" is a task written in Python, and this process "
                            "has no Python: run the program bimetal, or python -m bimetal.program",
                            job.model.python));
  }
  return known_maker()(job);
}

ImageClassification::ImageClassification(const std::string& model, std::int64_t hidden,
                                         data::TrainTest data, const std::string& dtype,
                                         data::Augment augment, std::int64_t norm_group)
    : description_(describe(model, hidden, norm_group, data.train, dtype)),
      left_out_(std::move(data.left_out)),
      training_(as_samples(std::move(data.train), dtype, augment)),
      evaluation_(as_samples(std::move(data.test), dtype, data::Augment::No)) {}

Model ImageClassification::make_model() const {
  return checkpoint::draw_described_model(description_);
}

std::shared_ptr<const Dataset> ImageClassification::training_unchanged() const {
  return as_samples(training_->images(), description_.dtype, data::Augment::No);
}

torch::Tensor ImageClassification::loss_sum(const Values& outputs, const Values& batch) const {
  return torch::cross_entropy_loss(outputs.front(), batch.back(), {}, at::Reduction::Sum);
}

std::vector<Metric> ImageClassification::metrics() const {
  const auto right = [](const Values& outputs, const Values& batch) {
    return outputs.front().argmax(1).eq(batch.back()).sum();
  };
  return {{.name = "accuracy", .sum = right}};
}

std::vector<std::string> ImageClassification::notices() const {
  if (left_out_.empty()) return {};
  const auto more = left_out_.size() > 1 ? fmt::format(" and {} more", left_out_.size() - 1) : "";
  return {fmt::format("left out of the data: {}{}", left_out_.front(), more)};
}

std::vector<std::string> ImageClassification::facts() const {
  return {fact("training", training_->images()), fact("test", evaluation_->images())};
}

}  // namespace bimetal::task
