#pragma once
// The tasks of the golden trainings: small, made for the test, and hard enough to move every
// parameter.

#include <memory>
#include <string>

#include "bimetal/models/language/language_model.h"
#include "bimetal/task/task.h"

namespace bimetal::golden {

constexpr std::int64_t sample_count = 200;
/// Each epoch's ninth and last step has 8.
constexpr std::int64_t global_batch = 24;
constexpr std::uint64_t seed = 3;

/// A model of images (the reference CNN, or a ResNet with a first stage of 32 channels) on 8×8 of
/// them: noise in which the label's own six pixels are brighter,
/// learnt within a few dozen steps. Drawn in double whatever the type, so that all types see the
/// same images.
class ImageTask final : public task::Task {
 public:
  explicit ImageTask(torch::ScalarType dtype = torch::kFloat64, std::string model = "cnn",
                     std::int64_t hidden = 0, std::int64_t norm_group = 0);

  task::Model make_model() const override;
  std::shared_ptr<const task::Dataset> training() const override { return data_; }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;

 private:
  std::string model_;
  std::int64_t hidden_, norm_group_;
  std::shared_ptr<const task::Dataset> data_;
};

/// The next of twelve tokens from the one before, on sequences of 1 to 40 of them: embedding,
/// hidden layer, and a head that is tied to the embedding. A sample weighs as many as it has
/// targets.
class TokenTask : public task::Task {
 public:
  TokenTask();

  task::Model make_model() const override;
  std::shared_ptr<const task::Dataset> training() const override { return data_; }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;

 private:
  std::shared_ptr<const task::Dataset> data_;
};

/// The same sequences, by a language model.
class LanguageTask final : public task::Task {
 public:
  /// `model`: a name of models::language_preset. `heads`: of attention; each two of llama's share
  /// keys and values.
  LanguageTask(const std::string& model, double dropout, std::int64_t heads = 4,
               std::int64_t blocks = 2);

  task::Model make_model() const override;
  std::shared_ptr<const task::Dataset> training() const override { return data_; }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;

 private:
  models::LanguageModelConfig config_;
  std::shared_ptr<const task::Dataset> data_;
};

/// A model from `from` in `dtype`.
task::Model make_start(const task::Task& task, std::uint64_t from,
                       torch::ScalarType dtype = torch::kFloat64);

}  // namespace bimetal::golden
