#include "bimetal/train/measure/split_measure.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/pipeline/split_backward.h"
#include "bimetal/precision/autocast.h"
#include "bimetal/task/draws.h"

namespace bimetal::train {
namespace {

constexpr double kSplitTimedFor = 1.0;  // seconds
constexpr int kMostSplits = 10;

/// A forward pass of all units but the first, whose outputs are leaves.
class Behind {
 public:
  Behind(const task::Task& task, const task::Model& model, const UnitMeasureOptions& options,
         std::int64_t samples)
      : task_(task),
        model_(model),
        options_(options),
        batch_(task::to_device(task::batch_of(*task.training(), 0, samples), options.device)) {
    const torch::NoGradGuard nothing;
    const precision::Autocast cast(options_.device.type(), options_.precision);
    first_ = task::run_units(std::span(model_.units).first(1), task_.inputs(batch_), {}, 0);
  }

  struct Pass {
    task::Values inputs;
    torch::Tensor loss;
  };
  Pass forward() const {
    const precision::Autocast cast(options_.device.type(), options_.precision);
    Pass pass;
    task::Values values;
    for (const auto& value : first_) {
      if (!value.defined() || !value.is_floating_point()) {
        values.push_back(value);
        continue;
      }
      pass.inputs.push_back(value.detach().requires_grad_());
      values.push_back(pass.inputs.back().clone());  // a unit may change its inputs in place
    }
    values = task::run_units(std::span(model_.units).subspan(1), std::move(values), {}, 1);
    pass.loss = task_.loss_sum(values, batch_);
    return pass;
  }

 private:
  const task::Task& task_;
  const task::Model& model_;
  const UnitMeasureOptions& options_;
  task::Values batch_, first_;
};

double seconds_of(const torch::Device& device, const std::function<void()>& run) {
  device::synchronize(device);
  const Stopwatch watch;
  run();
  device::synchronize(device);
  return watch.seconds();
}

}  // namespace

SplitSeconds measure_split(const task::Task& task, const DryRun& dry,
                           const UnitMeasureOptions& options, std::int64_t samples) {
  const auto& model = dry.model();
  if (model.units.size() < 2) return {};
  const auto& trained = dry.owners().tensors;
  const parallel::GradientHooks drop(
      trained, [&](std::size_t i) { trained[i].mutable_grad() = torch::Tensor(); });
  const precision::CastCache cache;
  const task::DrawScope scope(task::Draws::of_nobody(samples));
  const Behind behind(task, model, options, samples);
  double whole = 0, inputs = 0, weights = 0;
  const Stopwatch watch;
  for (int i = 0; i == 0 || (watch.seconds() < kSplitTimedFor && i < kMostSplits); ++i) {
    auto pass = behind.forward();
    whole += seconds_of(options.device, [&] { pass.loss.backward(); });
    pass = behind.forward();
    if (pass.inputs.empty() || !pass.loss.requires_grad()) return {};
    parallel::pipeline::SplitBackward split({pass.loss}, {torch::ones_like(pass.loss)},
                                            std::move(pass.inputs));
    pass.loss = torch::Tensor();
    inputs += seconds_of(options.device, [&] { split.of_inputs(); });
    weights += seconds_of(options.device, [&] { split.of_weights(); });
  }
  // A disturbance of the one kind must not make the other look free.
  const double least = std::max(1.0, whole / (inputs + weights));
  return {least * inputs / whole, least * weights / whole};
}

}  // namespace bimetal::train
