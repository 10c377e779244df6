#include "bimetal/train/measure/unit_measure.h"

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host_allocator.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/shard/fences.h"
#include "bimetal/parallel/shard/parameter_places.h"
#include "bimetal/precision/autocast.h"
#include "bimetal/task/draws.h"
#include "bimetal/train/compute.h"
#include "bimetal/train/measure/allocation_watch.h"
#include "bimetal/train/measure/unit_memory.h"
#include "bimetal/train/out_of_memory.h"

namespace bimetal::train {
namespace {

constexpr std::int64_t kMostSamples = 16;

double bytes_of(const task::Values& values) {
  double bytes = 0;
  for (const auto& value : values) bytes += static_cast<double>(value.nbytes());
  return bytes;
}

/// Of one unit, of one number of samples.
struct UnitRun {
  double output = 0, saved = 0, forward_peak = 0, backward_peak = 0;
  double forward_s = 0, backward_s = 0;
};

/// Where each trained tensor belongs: the first unit that has it.
struct Owners {
  std::vector<torch::Tensor> tensors;
  std::vector<std::size_t> unit;
  std::vector<bool> shared;
};

Owners owners_of(const task::Model& model) {
  Owners owners;
  std::map<const void*, std::size_t> known;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (const auto& [name, tensor] : model.units[u].parameters) {
      if (!tensor.requires_grad()) continue;
      const auto [place, fresh] =
          known.emplace(tensor.unsafeGetTensorImpl(), owners.tensors.size());
      if (!fresh) {
        owners.shared[place->second] =
            owners.shared[place->second] || owners.unit[place->second] != u;
        continue;
      }
      owners.tensors.push_back(tensor);
      owners.unit.push_back(u);
      owners.shared.push_back(false);
    }
  }
  return owners;
}

/// Runs micro-batches of a model and writes down what happens between its units.
class DryRun {
 public:
  DryRun(const task::Task& task, const UnitMeasureOptions& options)
      : task_(task), options_(options), data_(task.training()), watch_(options.device) {
    if (options.by_units) memory_ = UnitMemory::make(task, options.device, options.dtype);
    model_ = memory_ ? memory_->model() : task.make_model();
    if (!memory_) model_.to(options.device, options.dtype);
    model_.train();
    owners_ = owners_of(model_);
    for (std::size_t u = 0; u < model_.units.size() && memory_; ++u) hold_while_used(u);
  }

  const task::Model& model() const { return model_; }
  const Owners& owners() const { return owners_; }
  bool by_units() const { return memory_.has_value(); }

  std::vector<UnitRun> run(std::int64_t samples) {
    runs_.assign(model_.units.size(), {});
    const auto batch = task::to_device(task::batch_of(*data_, 0, samples), options_.device);
    const precision::CastCache cache;
    const task::DrawScope scope(task::Draws::of_nobody(samples));
    start_ = now();
    auto loss_sum = forward(batch);
    loss_sum = loss_sum.to(options_.dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32);
    backward(loss_sum, 1.0 / static_cast<double>(task::weight_of(*data_, 0, samples)));
    if (memory_) memory_->drop_all();
    return runs_;
  }

 private:
  double above_start(std::int64_t bytes) const { return static_cast<double>(bytes - start_); }

  // Without what UnitMemory holds, which is not the units' own.
  std::int64_t held() const { return memory_ ? memory_->held_bytes() : 0; }
  std::int64_t now() const { return watch_.now() - held(); }
  void note_peak() { peak_ = std::max(peak_, watch_.take_peak() - held()); }
  std::int64_t take_peak() {
    note_peak();
    return std::exchange(peak_, now());
  }
  void change_held(const std::function<void()>& change) {
    note_peak();
    change();
    watch_.take_peak();
  }
  void hold_while_used(std::size_t unit) {
    const auto hold = [this, unit] { change_held([&] { memory_->hold(unit); }); };
    const auto drop = [this, unit] { change_held([&] { memory_->drop(unit); }); };
    model_.units[unit] =
        parallel::shard::fence(std::move(model_.units[unit]), {.before_forward = hold,
                                                               .after_forward = drop,
                                                               .before_backward = hold,
                                                               .after_backward = drop});
  }

  torch::Tensor forward(const task::Values& batch) {
    const precision::Autocast cast(options_.device.type(), options_.precision);
    auto values = task_.inputs(batch);
    for (std::size_t u = 0; u < model_.units.size(); ++u) {
      begin_unit();
      values = task::run_units(std::span(&model_.units[u], 1), std::move(values), {}, u);
      runs_[u].output = bytes_of(values);
      if (u + 1 == model_.units.size()) break;
      end_unit(runs_[u]);
    }
    auto loss_sum = task_.loss_sum(values, batch);
    values.clear();
    end_unit(runs_.back());
    return loss_sum;
  }

  void begin_unit() {
    device::synchronize(options_.device);
    before_ = above_start(now());
    take_peak();
    clock_ = Stopwatch();
  }
  void end_unit(UnitRun& unit) {
    device::synchronize(options_.device);
    unit.forward_s = clock_.seconds();
    unit.saved = above_start(now()) - before_;
    unit.forward_peak = above_start(take_peak()) - before_;
  }

  void backward(const torch::Tensor& loss_sum, double part) {
    std::size_t unit = model_.units.size() - 1;
    take_peak();
    clock_ = Stopwatch();
    // Gradients of a unit come before those of the units in front of it (the last of a tensor that
    // several have with the first of them).
    const auto note = [&](std::size_t of) {
      device::synchronize(options_.device);
      unit = std::min(unit, of);
      auto& run = runs_[unit];
      run.backward_peak = std::max(run.backward_peak, above_start(take_peak()));
      run.backward_s += clock_.seconds();
      clock_ = Stopwatch();
    };
    {
      const parallel::GradientHooks hooks(owners_.tensors, [&](std::size_t parameter) {
        note(owners_.unit[parameter]);
        owners_.tensors[parameter].mutable_grad() = torch::Tensor();
      });
      loss_sum.backward(torch::full_like(loss_sum, part));
    }
    note(unit);
    double below = 0;
    for (auto& run : runs_) {
      run.backward_peak = std::max(run.backward_peak - below, run.saved);
      below += run.saved;
    }
  }

  const task::Task& task_;
  const UnitMeasureOptions& options_;
  std::shared_ptr<const task::Dataset> data_;
  AllocationWatch watch_;             ///< before the model: all that it frees has been counted
  std::optional<UnitMemory> memory_;  ///< where parameters come by units
  task::Model model_;
  Owners owners_;
  std::vector<UnitRun> runs_;
  std::int64_t start_ = 0, peak_ = 0;
  double before_ = 0;
  Stopwatch clock_;
};

std::vector<UnitRun> fastest_of(DryRun& dry, std::int64_t samples, int repeats) {
  auto best = dry.run(samples);
  for (int i = 0; i < repeats; ++i) {
    const auto again = dry.run(samples);
    for (std::size_t u = 0; u < best.size(); ++u) {
      const auto before = best[u];
      best[u] = again[u];
      best[u].forward_s = std::min(before.forward_s, again[u].forward_s);
      best[u].backward_s = std::min(before.backward_s, again[u].backward_s);
    }
  }
  return best;
}

/// Elements of units by what level 3 makes of them.
void count_forms(const task::Model& model, const Owners& owners, const UnitMeasureOptions& options,
                 plan::ModelFacts& facts) {
  std::vector<task::NamedTensor> trained;
  for (const auto& tensor : owners.tensors) trained.push_back({"", tensor});
  parallel::shard::WholeForm form{.keep_below = options.keep_below};
  if (options.precision != precision::Precision::float32) {
    form.half = precision::dtype_of(options.precision);
  }
  for (const auto& place : parallel::shard::describe(model, trained, form)) {
    auto& unit = facts.units[place.unit];
    if (place.resident) unit.resident += place.count;
    if (place.gathered) unit.halved += place.count;
  }
}

plan::ModelFacts facts_of(const DryRun& dry, std::int64_t few, const std::vector<UnitRun>& small,
                          std::int64_t many, const std::vector<UnitRun>& large, double slower) {
  plan::ModelFacts facts;
  const auto line = [&](double UnitRun::*figure, std::size_t u, double factor = 1) {
    return plan::Linear::through(static_cast<double>(few), factor * small[u].*figure,
                                 static_cast<double>(many), factor * large[u].*figure);
  };
  for (std::size_t u = 0; u < small.size(); ++u) {
    facts.units.push_back({.name = dry.model().units[u].name,
                           .output = line(&UnitRun::output, u),
                           .saved = line(&UnitRun::saved, u),
                           .forward_peak = line(&UnitRun::forward_peak, u),
                           .backward_peak = line(&UnitRun::backward_peak, u),
                           .forward_s = line(&UnitRun::forward_s, u, slower),
                           .backward_s = line(&UnitRun::backward_s, u, slower)});
  }
  const auto& owners = dry.owners();
  for (std::size_t i = 0; i < owners.tensors.size(); ++i) {
    auto& unit = facts.units[owners.unit[i]];
    (owners.shared[i] ? unit.shared : unit.parameters) += owners.tensors[i].numel();
  }
  for (const auto& [name, tensor] : dry.model().named_parameters()) {
    if (!tensor.requires_grad()) facts.frozen_bytes += static_cast<double>(tensor.nbytes());
  }
  for (const auto& [name, tensor] : dry.model().named_buffers()) {
    facts.frozen_bytes += static_cast<double>(tensor.nbytes());
  }
  return facts;
}

}  // namespace

double optimizer_state_bytes(const job::TrainConfig& job, torch::Dtype dtype) {
  const auto element = static_cast<double>(c10::elementSize(dtype));
  const auto& name = job.optimizer;
  if (name == "adam" || name == "adamw" || name == "lamb") return 2 * element;
  return job.momentum > 0 ? element : 0;
}

std::optional<plan::ModelFacts> measure_units(const job::TrainConfig& job, const task::Task& task,
                                              const UnitMeasureOptions& options) {
  std::optional<plan::ModelFacts> facts;
  const auto failed = without_memory_for(options.device, [&] {
    const auto data = task.training();
    const MicroBatch pieces(job.micro_batch, options.device, task::typical_weight(*data));
    const auto many = std::clamp<std::int64_t>(std::min(pieces.limit(), job.global_batch), 1,
                                               std::min(kMostSamples, data->size()));
    // Two numbers tell what grows; where one sample is all that is computed at once, two are run.
    const auto other =
        many > 1 ? std::max<std::int64_t>(1, many / 4) : std::min<std::int64_t>(2, data->size());
    const auto few = std::min(many, other), most = std::max(many, other);
    DryRun dry(task, options);
    const auto small = fastest_of(dry, few, options.repeats);
    const auto large = most > few ? fastest_of(dry, most, options.repeats) : small;
    facts = facts_of(dry, few, small, most, large, 1 / options.speed);
    count_forms(dry.model(), dry.owners(), options, *facts);
    facts->by_units = dry.by_units();
    facts->element_bytes = static_cast<int>(c10::elementSize(options.dtype));
    facts->state_bytes = optimizer_state_bytes(job, options.dtype);
    facts->batch_bytes = bytes_of(task::batch_of(*data, 0, 1));
    facts->sample_weight = task::typical_weight(*data);
  });
  device::give_back_freed_memory();
  if (failed) return std::nullopt;
  return facts;
}

}  // namespace bimetal::train
