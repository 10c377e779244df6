#include "bimetal/train/measure/unit_measure.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host_allocator.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/train/measure/dry_run.h"
#include "bimetal/train/measure/part_measure.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {
namespace {

constexpr std::int64_t kMostSamples = 16, kFewest = 2;
constexpr double kLongPass = 5.0;  // seconds

double seconds_of(const std::vector<UnitRun>& units) {
  double sum = 0;
  for (const auto& unit : units) sum += unit.forward_s + unit.backward_s;
  return sum;
}

/// Elements of units by what shards make of them.
void count_forms(const task::Model& model, const Owners& owners, const UnitMeasureOptions& options,
                 plan::ModelFacts& facts) {
  std::vector<task::NamedTensor> trained;
  for (const auto& tensor : owners.tensors) trained.push_back({"", tensor});
  parallel::shard::WholeForm form{.keep_below = options.keep_below};
  if (precision::is_half(options.on.precision)) {
    form.half = precision::dtype_of(options.on.precision);
  }
  for (const auto& place : parallel::shard::describe(model, trained, form)) {
    auto& unit = facts.units[place.unit];
    if (place.resident) unit.resident += place.count;
    if (place.gathered) unit.halved += place.count;
  }
}

/// Tensors that are not trained take room where they are used, and have neither gradient nor state.
/// If several stages use the same one, the first stage and the model's last count it.
void count_frozen(const task::Model& model, plan::ModelFacts& facts) {
  struct Use {
    std::size_t first;
    bool shared = false;
  };
  std::map<const void*, Use> known;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (const auto* const tensors : {&model.units[u].parameters, &model.units[u].buffers}) {
      for (const auto& [name, tensor] : *tensors) {
        if (tensor.requires_grad()) continue;
        const auto bytes = static_cast<double>(tensor.nbytes());
        const auto [place, fresh] = known.try_emplace(tensor.unsafeGetTensorImpl(), Use{u});
        auto& [first, shared] = place->second;
        if (fresh) facts.units[u].frozen += bytes;
        if (first != u && !std::exchange(shared, true)) facts.units[first].frozen_shared += bytes;
      }
    }
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
  count_frozen(dry.model(), facts);
  return facts;
}

}  // namespace

double update_seconds(const job::TrainConfig& job, std::int64_t elements, const Computing& on) {
  constexpr std::int64_t kEnough = 2 << 20;
  constexpr int kUpdates = 4;
  const auto count = std::clamp<std::int64_t>(elements, 1, kEnough);
  auto parameter = torch::zeros({count}, torch::dtype(on.dtype).device(on.device));
  parameter.set_requires_grad(true).mutable_grad() = torch::ones_like(parameter);
  const auto optimizer = optim::make_optimizer(job, {parameter});
  optimizer->step();  // makes its state
  device::synchronize(on.device);
  const Stopwatch watch;
  for (int i = 0; i < kUpdates; ++i) optimizer->step();
  device::synchronize(on.device);
  return watch.seconds() / kUpdates / static_cast<double>(count) / on.speed;
}

double optimizer_state_bytes(const job::TrainConfig& job, torch::Dtype dtype) {
  const auto element = static_cast<double>(c10::elementSize(dtype));
  const auto& name = job.optimizer;
  if (name == "adam" || name == "adamw" || name == "lamb") return 2 * element;
  return job.momentum > 0 ? element : 0;
}

namespace {

/// As measure_units(), of so many samples at most.
std::optional<plan::ModelFacts> measure_some(const job::TrainConfig& job, const task::Task& task,
                                             const UnitMeasureOptions& options,
                                             std::int64_t samples) {
  std::optional<plan::ModelFacts> facts;
  const bool timed = options.timed != Timed::nothing;
  const auto failed = device::without_memory_for(options.on.device, [&] {
    const auto data = task.training();
    const auto many = std::clamp<std::int64_t>(samples, 1, std::min(kMostSamples, data->size()));
    // Two numbers tell what grows; where one sample is all that is computed at once, two are run.
    const auto other =
        many > 1 ? std::max<std::int64_t>(1, many / 4) : std::min<std::int64_t>(2, data->size());
    const auto few = std::min(many, other);
    std::optional<DryRun> dry(std::in_place, task, options);
    const auto small = dry->run(few);
    auto most = std::max(many, other);
    // A line needs no far point, for which large models would take minutes.
    const auto passes = static_cast<double>(most) / static_cast<double>(few);
    if (timed && passes * seconds_of(small) > kLongPass) most = std::min(most, 2 * few);
    const auto large = most > few ? dry->run(most) : small;
    facts = facts_of(*dry, few, small, most, large, 1 / options.on.speed);
    count_forms(dry->model(), dry->owners(), options, *facts);
    facts->by_units = dry->by_units();
    if (options.timed == Timed::all && !facts->by_units) {
      SplitSeconds split;  // for nothing, where there is no room to try it
      static_cast<void>(device::without_memory_for(
          options.on.device, [&] { split = measure_split(task, *dry, options, most); }));
      facts->split_inputs = split.inputs;
      facts->split_weights = split.weights;
    }
    if (options.parts && !facts->by_units) count_splits(dry->model(), dry->owners(), *facts);
    dry.reset();  // so that one model is there at a time
    if (plan::most_tensor_ranks(*facts) > 1) measure_parts(task, options, most, large, *facts);
    facts->element_bytes = static_cast<int>(c10::elementSize(options.on.dtype));
    facts->state_bytes = optimizer_state_bytes(job, options.on.dtype);
    if (options.timed == Timed::all)
      facts->update_s = update_seconds(job, facts->elements(), options.on);
    facts->batch_bytes = bytes_of(task::batch_of(*data, 0, 1));
    facts->sample_weight = task::typical_weight(*data);
  });
  device::give_back_freed_memory();
  if (failed) return std::nullopt;
  return facts;
}

}  // namespace

std::optional<plan::ModelFacts> measure_units(const job::TrainConfig& job, const task::Task& task,
                                              const UnitMeasureOptions& options) {
  const MicroBatch pieces(job.micro_batch, options.on.device,
                          task::typical_weight(*task.training()));
  const auto asked = options.at_once > 0 ? options.at_once : pieces.limit();
  const auto samples = std::min(asked, job.global_batch);
  auto facts = measure_some(job, task, options, samples);
  // Two samples tell what grows, too.
  if (!facts && samples > kFewest) facts = measure_some(job, task, options, kFewest);
  return facts;
}

}  // namespace bimetal::train
