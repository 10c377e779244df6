#include "bimetal/train/pipeline/unit_costs.h"

#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host_allocator.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/dropout.h"
#include "bimetal/train/measure/dry_run.h"

namespace bimetal::train {
namespace {

constexpr std::int64_t kFewSamples = 4;  // to begin with

class Measurement {
 public:
  Measurement(const task::Task& task, const UnitProbe& probe)
      : task_(task), probe_(probe), data_(task.training()) {
    if (probe.by_units) memory_ = UnitMemory::make(task, probe.device, probe.dtype);
    model_ = memory_ ? memory_->model() : task.make_model();
    if (!memory_) model_.to(probe.device, probe.dtype);
  }

  UnitCosts run() {
    const auto most = std::min(probe_.samples, data_->size());
    take(std::min(kFewSamples, most));
    pass();  // kernels are chosen, memory is fetched
    begin();
    pass();
    const auto more = std::min(most, samples_in_time());
    if (more > samples_ && !takes_more(more)) {
      take(samples_);
      begin();
      pass();
    }
    while (watch_.seconds() < budget()) pass();
    return means();
  }

 private:
  double budget() const { return std::chrono::duration<double>(probe_.budget).count(); }

  void take(std::int64_t samples) {
    samples_ = samples;
    batch_ = task::to_device(task::batch_of(*data_, 0, samples), probe_.device);
    draws_ = task::Draws::of_nobody(samples);
  }

  /// Whether there is memory for so many; then they have been computed.
  bool takes_more(std::int64_t samples) {
    const auto few = samples_;
    const auto failed = device::without_memory_for(probe_.device, [&] {
      take(samples);
      pass();
      begin();
      pass();
    });
    if (!failed) return true;
    samples_ = few;
    if (memory_) memory_->drop_all();
    return false;
  }

  /// Of which two passes take no longer than measuring may.
  std::int64_t samples_in_time() const {
    const double times = budget() / (2 * std::max(1e-9, watch_.seconds()));
    return static_cast<std::int64_t>(static_cast<double>(samples_) * std::min(times, 1e9));
  }

  void begin() {
    const auto units = model_.units.size();
    costs_ = {std::vector<double>(units), {std::vector<double>(units), std::vector<double>(units)}};
    passes_ = 0;
    watch_ = Stopwatch();
  }

  /// Of a micro-batch, by those that were computed.
  UnitCosts means() const {
    auto costs = costs_;
    const double times = static_cast<double>(probe_.samples) / static_cast<double>(samples_);
    for (auto* const figures : {&costs.seconds, &costs.sent.forward, &costs.sent.backward}) {
      for (auto& figure : *figures) figure = times * figure / passes_;
    }
    return costs;
  }

  template <typename Work>
  void timed(std::size_t unit, const Work& work) {
    const Stopwatch watch;
    work();
    device::synchronize(probe_.device);
    device::pause_for_speed(probe_.speed, watch.seconds());
    costs_.seconds[unit] += watch.seconds();
  }

  // Backward of a unit follows its forward at once: what the gradient of its outputs is changes
  // nothing in its time.
  void pass() {
    if (costs_.seconds.empty()) begin();
    const task::DrawScope scope(draws_);
    auto inputs = task_.inputs(batch_);
    for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
      const precision::CastCache cache;
      if (memory_) memory_->hold(unit);
      const auto outputs = forward(unit, inputs);
      backward(unit, outputs);
      inputs = leaves_of(outputs);
      if (memory_) memory_->drop(unit);
    }
    if (memory_) memory_->drop_all();
    ++passes_;
  }

  task::Values forward(std::size_t unit, const task::Values& inputs) {
    task::Values outputs;
    timed(unit, [&] {
      const precision::Autocast cast(probe_.device.type(), probe_.precision);
      outputs = model_.units[unit].forward(inputs);
      if (unit + 1 == model_.units.size()) outputs = {task_.loss_sum(outputs, batch_)};
    });
    costs_.sent.forward[unit] += bytes_of(outputs);
    return outputs;
  }

  void backward(std::size_t unit, const task::Values& outputs) {
    task::Values from, gradients;
    for (const auto& output : outputs) {
      if (!output.requires_grad()) continue;
      from.push_back(output);
      gradients.push_back(torch::ones_like(output));
    }
    if (!from.empty()) timed(unit, [&] { torch::autograd::backward(from, gradients); });
    costs_.sent.backward[unit] += bytes_of(from);
    for (const auto& [name, parameter] : model_.units[unit].parameters) {
      parameter.mutable_grad() = torch::Tensor();
    }
  }

  static task::Values leaves_of(const task::Values& outputs) {
    task::Values leaves;
    for (const auto& output : outputs) {
      leaves.push_back(output.detach().set_requires_grad(output.requires_grad()));
    }
    return leaves;
  }

  const task::Task& task_;
  const UnitProbe& probe_;
  std::shared_ptr<const task::Dataset> data_;
  std::optional<UnitMemory> memory_;  ///< where parameters come by units
  task::Model model_;
  std::int64_t samples_ = 0;  ///< that passes compute
  task::Values batch_;
  task::Draws draws_;
  UnitCosts costs_;  ///< sums over passes
  int passes_ = 0;
  Stopwatch watch_;
};

}  // namespace

UnitCosts unit_costs(const task::Task& task, const UnitProbe& probe) {
  UnitCosts costs;
  const auto error =
      device::without_memory_for(probe.device, [&] { costs = Measurement(task, probe).run(); });
  device::give_back_freed_memory();
  return error ? UnitCosts() : costs;
}

}  // namespace bimetal::train
