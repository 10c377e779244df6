#pragma once
// The reference models on labelled images: cross-entropy and accuracy.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/data/images/dataset.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::task {

/// A batch is {images [b, C, H, W], labels int64 [b]}, the model's output {logits [b, classes]}.
class ImageClassification final : public JobTask {
 public:
  /// `model`, `hidden` and `norm_group`: as models::make_model takes them; `dtype`: "float32" or
  /// "float64", of the images in batches; `augment`: of those that are trained on.
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
