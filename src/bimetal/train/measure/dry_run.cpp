#include "bimetal/train/measure/dry_run.h"

#include <c10/core/Allocator.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "bimetal/device/device.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/unit_gathers.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/dropout.h"

namespace bimetal::train {

class AllocationWatch::Counter final : public c10::MemoryReportingInfoBase {
 public:
  explicit Counter(const c10::Device& device) : type_(device.type()) {}

  void reportMemoryUsage(void* /*ptr*/, std::int64_t size, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device device) override {
    if (device.type() != type_) return;
    const std::lock_guard lock(mutex_);
    now_ += size;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t now() {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  std::int64_t take_peak() {
    const std::lock_guard lock(mutex_);
    return std::exchange(peak_, now_);
  }

 private:
  const c10::DeviceType type_;
  std::mutex mutex_;
  std::int64_t now_ = 0, peak_ = 0;
};

AllocationWatch::AllocationWatch(const c10::Device& device)
    : counter_(std::make_shared<Counter>(device)),
      guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

std::int64_t AllocationWatch::now() const {
  return counter_->now();
}

std::int64_t AllocationWatch::take_peak() {
  return counter_->take_peak();
}

std::optional<UnitMemory> UnitMemory::make(const task::Task& task, const torch::Device& device,
                                           torch::Dtype dtype) {
  auto model = task.make_model_by_units([&](const task::Unit& unit) {
    task::Model{{unit}}.to(device, dtype);
    for (const auto& [name, tensor] : unit.parameters) parallel::shard::hollow_out(tensor);
  });
  if (!model) return std::nullopt;
  return UnitMemory(std::move(*model));
}

UnitMemory::UnitMemory(task::Model model) : model_(std::move(model)) {
  std::map<const void*, std::size_t> known;
  for (const auto& unit : model_.units) {
    auto& own = of_unit_.emplace_back();
    for (const auto& [name, tensor] : unit.parameters) {
      const auto [place, fresh] = known.emplace(tensor.unsafeGetTensorImpl(), parts_.size());
      if (fresh) {
        parts_.push_back({tensor});
      } else {
        parts_[place->second].shared = true;
      }
      own.push_back(place->second);
    }
  }
}

void UnitMemory::hold(std::size_t unit) {
  const torch::NoGradGuard no_grad;
  for (const auto index : of_unit_[unit]) {
    auto& part = parts_[index];
    if (part.there) continue;
    auto* const storage = part.tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr(
        c10::GetAllocator(part.tensor.device().type())->allocate(storage->nbytes()));
    part.tensor.variable_data().zero_();  // without its count of changes: autograd has saved it
    part.there = true;
    held_ += static_cast<std::int64_t>(storage->nbytes());
  }
}

void UnitMemory::drop(Part& part) {
  if (!part.there) return;
  parallel::shard::hollow_out(part.tensor);
  part.there = false;
  held_ -= static_cast<std::int64_t>(part.tensor.storage().unsafeGetStorageImpl()->nbytes());
}

void UnitMemory::drop(std::size_t unit) {
  for (const auto index : of_unit_[unit]) {
    if (!parts_[index].shared) drop(parts_[index]);
  }
}

void UnitMemory::drop_all() {
  for (auto& part : parts_) drop(part);
}

namespace {

constexpr double kTimedFor = 1.0, kTimedForPasses = 0.4;  // seconds, for each number of samples
constexpr int kMostRuns = 30;

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

}  // namespace

double bytes_of(const task::Values& values) {
  double bytes = 0;
  for (const auto& value : values) bytes += static_cast<double>(value.nbytes());
  return bytes;
}

DryRun::DryRun(const task::Task& task, const UnitMeasureOptions& options,
               const std::function<void(task::Model& model)>& prepare)
    : task_(task),
      options_(options),
      products_(options.on.precision),
      data_(task.training()),
      watch_(options.on.device),
      events_(!options.on.device.is_cpu() && !options.on.device.is_mps()),
      timer_(options.on.device) {
  if (options.by_units) memory_ = UnitMemory::make(task, options.on.device, options.on.dtype);
  model_ = memory_ ? memory_->model() : task.make_model();
  if (!memory_) model_.to(options.on.device, options.on.dtype);
  if (prepare) prepare(model_);
  model_.train();
  owners_ = owners_of(model_);
  for (std::size_t u = 0; u < model_.units.size() && memory_; ++u) hold_while_used(u);
}

std::vector<UnitRun> DryRun::run_once(std::int64_t samples) {
  runs_.assign(model_.units.size(), {});
  ++count_;
  const auto batch = task::to_device(task::batch_of(*data_, 0, samples), options_.on.device);
  const precision::CastCache cache;
  const task::DrawScope scope(task::Draws::of_nobody(samples));
  start_ = now();
  auto loss_sum = forward(batch);
  loss_sum = loss_sum.to(options_.on.dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32);
  backward(loss_sum, 1.0 / static_cast<double>(task::weight_of(*data_, 0, samples)));
  read_spans();
  if (memory_) memory_->drop_all();
  return runs_;
}

std::vector<UnitRun> DryRun::run(std::int64_t samples) {
  if (options_.timed == Timed::nothing) return run_once(samples);
  const double timed_for = options_.timed == Timed::all ? kTimedFor : kTimedForPasses;
  run_once(samples);  // kernels are chosen, memory is fetched
  const Stopwatch watch;
  auto sum = run_once(samples);
  int count = 1;
  for (; watch.seconds() < timed_for && count < kMostRuns; ++count) {
    auto again = run_once(samples);
    for (std::size_t u = 0; u < sum.size(); ++u) {
      again[u].forward_s += sum[u].forward_s;
      again[u].backward_s += sum[u].backward_s;
    }
    sum = std::move(again);
  }
  for (auto& unit : sum) {
    unit.forward_s /= count;
    unit.backward_s /= count;
  }
  return sum;
}

void DryRun::note_peak() {
  peak_ = std::max(peak_, watch_.take_peak() - held());
}

std::int64_t DryRun::take_peak() {
  note_peak();
  return std::exchange(peak_, now());
}

void DryRun::change_held(const std::function<void()>& change) {
  note_peak();
  const Stopwatch filling;
  device::StreamTimer timer(options_.on.device);
  if (events_) timer.begin();
  change();
  filled_s_ += filling.seconds();
  if (events_) {
    timer.end();
    filling_.push_back(std::move(timer));
  }
  watch_.take_peak();
}

void DryRun::hold_while_used(std::size_t unit) {
  const auto hold = [this, unit] { change_held([&] { memory_->hold(unit); }); };
  const auto drop = [this, unit] { change_held([&] { memory_->drop(unit); }); };
  model_.units[unit] =
      parallel::shard::fence(std::move(model_.units[unit]), {.before_forward = hold,
                                                             .after_forward = drop,
                                                             .before_backward = hold,
                                                             .after_backward = drop});
}

torch::Tensor DryRun::forward(const task::Values& batch) {
  const precision::Autocast cast(options_.on.device.type(), options_.on.precision);
  auto values = task_.inputs(batch);
  if (options_.on.channels_last) values = task::in_channels_last(std::move(values));
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    begin_unit();
    values = task::run_units(std::span(&model_.units[u], 1), std::move(values), {}, u);
    runs_[u].output = bytes_of(values);
    if (u + 1 == model_.units.size()) break;
    end_unit(u);
  }
  auto loss_sum = task_.loss_sum(values, batch);
  values.clear();
  end_unit(runs_.size() - 1);
  return loss_sum;
}

void DryRun::begin_unit() {
  if (!events_) device::synchronize(options_.on.device);
  before_ = above_start(now());
  take_peak();
  start_clock();
}

void DryRun::start_clock() {
  filled_s_ = 0;
  clock_ = Stopwatch();
  if (!events_) return;
  filling_.clear();
  timer_.begin();
}

void DryRun::stop_clock(std::size_t unit, bool backward) {
  if (events_) {
    timer_.end();
    spans_.push_back({unit, backward, std::move(timer_), std::move(filling_)});
    timer_ = device::StreamTimer(options_.on.device);
    filling_.clear();
    return;
  }
  device::synchronize(options_.on.device);
  auto& run = runs_[unit];
  (backward ? run.backward_s : run.forward_s) += clock_.seconds() - filled_s_;
}

void DryRun::read_spans() {
  if (!events_) return;
  device::synchronize(options_.on.device);
  for (const auto& span : std::exchange(spans_, {})) {
    double seconds = span.all.seconds();
    for (const auto& filling : span.filling) seconds -= filling.seconds();
    auto& run = runs_[span.unit];
    (span.backward ? run.backward_s : run.forward_s) += seconds;
  }
}

void DryRun::end_unit(std::size_t number) {
  stop_clock(number, /*backward=*/false);
  auto& unit = runs_[number];
  unit.saved = above_start(now()) - before_;
  unit.forward_peak = above_start(take_peak()) - before_;
}

void DryRun::backward(const torch::Tensor& loss_sum, double part) {
  std::size_t unit = model_.units.size() - 1;
  take_peak();
  start_clock();
  // Gradients of a unit come before those of the units in front of it (the last of a tensor that
  // several have with the first of them).
  const auto note = [&](std::size_t of) {
    unit = std::min(unit, of);
    stop_clock(unit, /*backward=*/true);
    auto& run = runs_[unit];
    run.backward_peak = std::max(run.backward_peak, above_start(take_peak()));
    start_clock();
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

}  // namespace bimetal::train
