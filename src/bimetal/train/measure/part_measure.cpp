#include "bimetal/train/measure/part_measure.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/deadline.h"
#include "bimetal/device/device.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/pipeline/split_backward.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/parallel/tensor/sequence_ranks.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::train {

namespace {

constexpr std::array<double, 2> kHalves = {1, 1};
constexpr std::size_t kNumbersOfLoss = 3;  // of each token (parallel/tensor/group_ranks.h)

/// The sums of a unit's ranks in one direction, in all-reduces.
struct PartSums {
  double count = 0, bytes = 0;

  void add(double more, double of_bytes) {
    count += more;
    bytes += more * of_bytes;
  }
};

struct UnitSums {
  PartSums forward = {}, backward = {};
};

/// The first of two ranks, without the other one: it counts the sums that it would make. If
/// sequences are in parts, its own positions stand for those that are not here.
class LoneRank final : public task::TensorRanks {
 public:
  LoneRank(std::size_t units, bool sequences) : sequences_(sequences), sums_(units) {}

  bool sequences() const noexcept { return sequences_; }
  /// `length`: that of the sequences.
  void begin(std::size_t unit, std::int64_t length) const {
    unit_ = unit;
    length_ = length;
  }
  const std::vector<UnitSums>& sums() const noexcept { return sums_; }

  task::Part part(std::int64_t pieces) const override {
    return {0, balance::whole_parts(pieces, kHalves).front()};
  }
  std::optional<task::Part> positions() const override {
    if (!sequences_) return std::nullopt;
    return task::Part{0, parallel::tensor::positions_by_rank(length_, kHalves).front()};
  }
  torch::Tensor shared(const torch::Tensor& x) const override {
    auto& sums = sums_[unit_];
    if (!sequences_) {
      sums.backward.add(1, static_cast<double>(x.nbytes()));
      return x;
    }
    count_halves(whole_bytes(x, x.size(1)));
    return parallel::tensor::both_ways(
        x, [all = length_](const torch::Tensor& part) { return all_positions(part, all); },
        [here = x.size(1)](const torch::Tensor& gradient) {
          return first_positions(gradient, here);
        });
  }
  torch::Tensor sum(const torch::Tensor& x) const override {
    if (!sequences_) {
      sums_[unit_].forward.add(1, static_cast<double>(x.nbytes()));
      return x.clone();
    }
    count_halves(whole_bytes(x, length_));
    return parallel::tensor::both_ways(
        x,
        [here = positions()->count](const torch::Tensor& whole) {
          return first_positions(whole, here);
        },
        [all = length_](const torch::Tensor& gradient) { return all_positions(gradient, all); });
  }
  /// As much work as with the other rank: missing tokens are taken for the last one here.
  torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  std::int64_t /*vocabulary*/,
                                  std::int64_t /*ignored*/) const override {
    const auto numbers =
        logits.scalar_type() == torch::kFloat64 ? logits : logits.to(torch::kFloat);
    const auto bytes = static_cast<double>(kNumbersOfLoss * numbers.element_size()) *
                       static_cast<double>(targets.numel());
    sums_[unit_].forward.add(2, bytes / 2);
    return torch::cross_entropy_loss(numbers, targets.clamp(0, logits.size(1) - 1), {},
                                     at::Reduction::Sum);
  }

 private:
  /// The bytes of `x` with all of the sequences in place of `positions` of them.
  double whole_bytes(const torch::Tensor& x, std::int64_t positions) const {
    return static_cast<double>(x.nbytes()) * static_cast<double>(length_) /
           static_cast<double>(std::max<std::int64_t>(1, positions));
  }
  /// A reduce_scatter one way and an all_gather the other.
  void count_halves(double bytes) const {
    sums_[unit_].forward.add(0.5, bytes);
    sums_[unit_].backward.add(0.5, bytes);
  }
  static torch::Tensor first_positions(const torch::Tensor& x, std::int64_t count) {
    return x.narrow(1, 0, count).clone(at::MemoryFormat::Contiguous);
  }
  static torch::Tensor all_positions(const torch::Tensor& x, std::int64_t count) {
    return torch::cat({x, x.narrow(1, 0, count - x.size(1))}, 1);
  }

  const bool sequences_;
  mutable std::size_t unit_ = 0;
  mutable std::int64_t length_ = 0;
  mutable std::vector<UnitSums> sums_;
};

/// By the number of pieces: tensors that are cut alike.
std::vector<plan::SplitFacts> splits_of(const task::Unit& unit, std::size_t place,
                                        const Owners& owners) {
  std::map<std::int64_t, plan::SplitFacts> splits;
  for (const auto& split : unit.splits) {
    const auto found =
        std::ranges::find(unit.parameters, split.parameter, &task::NamedTensor::name);
    if (found == unit.parameters.end()) continue;
    const auto& tensor = found->tensor;
    const auto pieces = tensor.size(split.dim) / (split.grain * split.segments);
    auto& facts = splits[pieces];
    facts.pieces = pieces;
    facts.elements += tensor.numel();
    for (std::size_t i = 0; i < owners.tensors.size(); ++i) {
      if (!owners.tensors[i].is_same(tensor) || owners.unit[i] != place) continue;
      (owners.shared[i] ? facts.shared : facts.own) += tensor.numel();
    }
  }
  std::vector<plan::SplitFacts> all;
  for (auto& [pieces, facts] : splits) all.push_back(facts);
  return all;
}

/// The part of the unit's matrices that a half has; 1: nothing is cut.
double half_of(const plan::PartFacts& parts) {
  double all = 0, here = 0;
  for (const auto& split : parts.splits) {
    const auto own = static_cast<double>(balance::whole_parts(split.pieces, kHalves).front());
    all += static_cast<double>(split.elements);
    here += static_cast<double>(split.elements) * own / static_cast<double>(split.pieces);
  }
  return all > 0 ? here / all : 1;
}

/// The fraction of a figure that each rank has in any case, if so much is left of it for a `part`.
double kept_whole(double whole, double left, double part) {
  if (whole <= 0 || part >= 1) return 1;
  return std::clamp((left / whole - part) / (1 - part), 0.0, 1.0);
}

/// Cuts the model, and lets its units compute as that rank's.
void take_half(task::Model& model, const std::shared_ptr<const LoneRank>& rank) {
  const parallel::tensor::Cuts cuts(model, {kHalves.begin(), kHalves.end()});
  const torch::NoGradGuard no_grad;
  for (const auto& named : model.named_parameters()) {
    auto tensor = named.tensor;
    if (cuts.has(named.name)) tensor.set_data(cuts.part(named.name, tensor.detach(), 0));
  }
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    auto& unit = model.units[u];
    unit.forward = [rank, u, alone = std::move(unit.forward)](task::Values inputs) {
      const auto length = rank->sequences() ? parallel::tensor::take_length(inputs) : 0;
      rank->begin(u, length);
      const task::TensorScope scope(rank);
      auto outputs = alone(inputs);
      if (!rank->sequences()) return outputs;
      return parallel::tensor::with_length(std::move(outputs), length);
    };
  }
}

void complete(const UnitRun& whole, const UnitRun& half, plan::PartFacts& parts) {
  const double part = half_of(parts);
  const auto kept = [&](double UnitRun::*figure) {
    return kept_whole(whole.*figure, half.*figure, part);
  };
  parts.output = kept(&UnitRun::output);
  parts.saved = kept(&UnitRun::saved);
  parts.forward_peak = kept(&UnitRun::forward_peak);
  parts.backward_peak = kept(&UnitRun::backward_peak);
  parts.forward_s = kept(&UnitRun::forward_s);
  parts.backward_s = kept(&UnitRun::backward_s);
}

/// Units with equal keys are made of the same tensors.
std::vector<std::int64_t> key_of(const plan::UnitFacts& unit) {
  std::vector<std::int64_t> key = {unit.parameters, unit.shared};
  for (const auto& split : unit.in_parts.splits) {
    key.insert(key.end(), {split.pieces, split.elements});
  }
  return key;
}

void add(const UnitRun& run, UnitRun& to) {
  for (const auto figure : {&UnitRun::output, &UnitRun::saved, &UnitRun::forward_peak,
                            &UnitRun::backward_peak, &UnitRun::forward_s, &UnitRun::backward_s}) {
    to.*figure += run.*figure;
  }
}

/// The runs of units that are alike, together.
struct Alike {
  UnitRun whole = {}, half = {};
};

}  // namespace

void count_splits(const task::Model& model, const Owners& owners, plan::ModelFacts& facts) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    facts.units[u].in_parts.splits = splits_of(model.units[u], u, owners);
  }
}

void measure_parts(const task::Task& task, const UnitMeasureOptions& options, std::int64_t samples,
                   const std::vector<UnitRun>& whole, plan::ModelFacts& facts) {
  const std::shared_ptr<const LoneRank> rank =
      std::make_shared<LoneRank>(facts.units.size(), options.sequences);
  const parallel::tensor::TensorTask half_task(task, rank);
  DryRun dry(half_task, options, [&](task::Model& model) { take_half(model, rank); });
  const auto half = dry.run(samples);
  const double runs = dry.runs();
  // A moment's disturbance of a unit must not look like work that cannot be cut: all blocks have
  // one figure.
  std::map<std::vector<std::int64_t>, Alike> alike;
  for (std::size_t u = 0; u < facts.units.size(); ++u) {
    auto& together = alike[key_of(facts.units[u])];
    add(whole[u], together.whole);
    add(half[u], together.half);
  }
  for (std::size_t u = 0; u < facts.units.size(); ++u) {
    const auto& together = alike[key_of(facts.units[u])];
    auto& parts = facts.units[u].in_parts;
    complete(together.whole, together.half, parts);
    const auto& sums = rank->sums()[u];
    parts.forward_sums = sums.forward.count / runs;
    parts.backward_sums = sums.backward.count / runs;
    const double all = runs * static_cast<double>(samples);
    parts.forward_summed_bytes = {0, sums.forward.bytes / all};
    parts.backward_summed_bytes = {0, sums.backward.bytes / all};
  }
}

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
        batch_(task::to_device(task::batch_of(*task.training(), 0, samples), options.on.device)) {
    const torch::NoGradGuard nothing;
    const precision::Autocast cast(options_.on.device.type(), options_.on.precision);
    first_ = task::run_units(std::span(model_.units).first(1), task_.inputs(batch_), {}, 0);
  }

  struct Pass {
    task::Values inputs;
    torch::Tensor loss;
  };
  Pass forward() const {
    const precision::Autocast cast(options_.on.device.type(), options_.on.precision);
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
    whole += seconds_of(options.on.device, [&] { pass.loss.backward(); });
    pass = behind.forward();
    if (pass.inputs.empty() || !pass.loss.requires_grad()) return {};
    parallel::pipeline::SplitBackward split({pass.loss}, {torch::ones_like(pass.loss)},
                                            std::move(pass.inputs));
    pass.loss = torch::Tensor();
    inputs += seconds_of(options.on.device, [&] { split.of_inputs(); });
    weights += seconds_of(options.on.device, [&] { split.of_weights(); });
  }
  // A disturbance of the one kind must not make the other look free.
  const double least = std::max(1.0, whole / (inputs + weights));
  return {least * inputs / whole, least * weights / whole};
}

}  // namespace bimetal::train
