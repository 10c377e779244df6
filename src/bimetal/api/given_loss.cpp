#include "bimetal/api/given_loss.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/unit.h"

namespace bimetal::api {
namespace {

Batch batch_of(const task::Values& values) {
  return {.values = values, .x = values.front(), .y = values.back()};
}

void require_number(const torch::Tensor& tensor, const char* what) {
  if (tensor.defined() && tensor.numel() == 1) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has to be one number for a piece of a batch", what));
}

}  // namespace

torch::Tensor GivenLoss::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  if (sums_ != nullptr) return sums_->loss_sum(outputs, batch);
  auto piece = batch_of(batch);
  piece.epoch = steps_->open_plan().samples.epoch + 1;
  piece.step = steps_->step();
  const auto mean = (*mean_)(outputs, piece);
  require_number(mean, "the mean loss");
  std::int64_t weight = 0;
  for (const auto sample : task::current_draws()->samples) {
    weight += steps_->dataset().weight(sample);
  }
  // A sum may exceed what float16 can hold.
  const bool wide = mean.scalar_type() == torch::kFloat64;
  return mean.to(wide ? torch::kFloat64 : torch::kFloat32) * static_cast<double>(weight);
}

std::vector<task::Metric> GivenLoss::metrics() const {
  return sums_ != nullptr ? sums_->metrics() : std::vector<task::Metric>();
}

torch::Tensor GivenSums::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  last_ = sums_(outputs, batch_of(batch));
  if (last_.size() != names_.size() + 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("evaluate() has {} metrics, and its function gave {} sums: give the "
                            "loss's first and then one for each metric",
                            names_.size(), last_.size()));
  }
  for (const auto& sum : last_) require_number(sum, "each sum of evaluate()");
  return last_.front();
}

std::vector<task::Metric> GivenSums::metrics() const {
  std::vector<task::Metric> metrics;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    metrics.push_back(
        {.name = names_[i], .sum = [this, i](const auto&, const auto&) { return last_[i + 1]; }});
  }
  return metrics;
}

task::Model hand_on(const task::Model& model) {
  task::Unit unit;
  unit.name = "function";
  unit.forward = [](const task::Values& inputs) { return inputs; };
  unit.statistics = model.statistics();
  return {{unit}};
}

EvaluationMode::EvaluationMode(const task::Model& model) {
  for (const auto& unit : model.units) {
    const auto* training = unit.set_training.target<task::ModuleTraining>();
    if (training == nullptr) continue;
    for (const auto& module : training->module->modules()) {
      modes_.emplace_back(module, module->is_training());
    }
  }
  model.eval();
}

// A module hands its mode on to its own, which come after it.
EvaluationMode::~EvaluationMode() {
  for (const auto& [module, training] : modes_) module->train(training);
}

}  // namespace bimetal::api
