#pragma once
// What a program gives as a function, as the tasks that the inner rooms know. Private to api.

#include <torch/csrc/api/include/torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/api/balanced_steps.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal::api {

/// Sums over a batch: of the losses first, and then of metrics of these names.
class GivenSums final : public task::Task {
 public:
  using Sums = std::function<task::Values(const task::Values& outputs, const Batch& batch)>;

  GivenSums(Sums sums, std::vector<std::string> metrics)
      : sums_(std::move(sums)), names_(std::move(metrics)) {}

  task::Model make_model() const override { return {}; }
  std::shared_ptr<const task::Dataset> training() const override { return nullptr; }
  task::Values inputs(const task::Values& batch) const override { return batch; }
  /// Error(InvalidArgument) where the function gives more or fewer than there are names.
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override;

 private:
  Sums sums_;
  std::vector<std::string> names_;
  mutable task::Values last_;  ///< what loss_sum() has got; the metrics' sums are asked for next
};

/// A loss that is the mean over a piece of the batch under way. Use from one thread.
class GivenLoss final : public task::Task {
 public:
  using Mean = std::function<torch::Tensor(const task::Values& outputs, const Batch& piece)>;

  /// `inputs_only`: the model gets all of a batch but the last, as of other tasks; else all.
  explicit GivenLoss(bool inputs_only, task::Model model = {})
      : inputs_only_(inputs_only), model_(std::move(model)) {}

  /// Of the batch under way in `steps`; both must outlive the step.
  void begin(const BalancedSteps& steps, const Mean& mean) {
    steps_ = &steps;
    mean_ = &mean;
  }

  /// Until it is given nullptr: these sums in place of the loss.
  void judge_by(const GivenSums* sums) { sums_ = sums; }

  task::Model make_model() const override { return model_; }
  std::shared_ptr<const task::Dataset> training() const override { return nullptr; }
  task::Values inputs(const task::Values& batch) const override {
    return inputs_only_ ? Task::inputs(batch) : batch;
  }
  /// In the scope of the piece's draws. Error(InvalidArgument) for a mean that is not one number.
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override;

 private:
  bool inputs_only_;
  task::Model model_;
  const GivenSums* sums_ = nullptr;
  const BalancedSteps* steps_ = nullptr;
  const Mean* mean_ = nullptr;
};

/// Calls `end` when it goes, however that comes.
template <typename End>
class AtEnd {
 public:
  explicit AtEnd(End end) : end_(std::move(end)) {}
  ~AtEnd() { end_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  End end_;
};

/// A model that hands on what it gets, for who calls the program's own; samples of `model` that are
/// normalised with each other stay together.
task::Model hand_on(const task::Model& model);

/// Modules in evaluation mode; each gets its own mode back.
class EvaluationMode {
 public:
  explicit EvaluationMode(const task::Model& model);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace bimetal::api
