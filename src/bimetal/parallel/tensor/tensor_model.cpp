#include "bimetal/parallel/tensor/tensor_model.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/tensor/sequence_ranks.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel::tensor {
namespace {

/// The name that a tensor is listed under in the whole model.
std::string first_name(const std::vector<task::NamedTensor>& distinct,
                       const torch::Tensor& tensor) {
  const auto found = std::ranges::find_if(
      distinct, [&](const task::NamedTensor& other) { return other.tensor.is_same(tensor); });
  return found->name;
}

[[noreturn]] void refuse_split(const std::string& unit, const std::string& what) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("unit '{}' says how to cut '{}', which {}", unit, what,
                          "does not fit the parameter of that name"));
}

bool same_cut(const task::TensorSplit& a, const task::TensorSplit& b) {
  return a.dim == b.dim && a.grain == b.grain && a.segments == b.segments;
}

constexpr std::size_t kMessageBytes = std::size_t{8} << 20;

task::Unit together(task::Unit unit, const std::shared_ptr<const GroupRanks>& ranks) {
  unit.forward = [ranks, alone = std::move(unit.forward)](const task::Values& inputs) {
    const task::TensorScope scope(ranks);
    return alone(inputs);
  };
  return unit;
}

/// The same, in sequences of which each rank has a part.
task::Unit in_sequence(task::Unit unit, const std::shared_ptr<const GroupRanks>& ranks) {
  unit.forward = [ranks, alone = std::move(unit.forward)](task::Values inputs) {
    const auto length = take_length(inputs);
    const task::TensorScope scope(std::make_shared<SequenceRanks>(ranks, length));
    return with_length(alone(inputs), length);
  };
  return unit;
}

constexpr std::size_t kWholeMessageBytes = std::size_t{8} << 20;

/// The trained parameters, by type.
std::map<torch::ScalarType, std::vector<torch::Tensor>> trained_by_type(
    const std::vector<torch::Tensor>& parameters) {
  std::map<torch::ScalarType, std::vector<torch::Tensor>> types;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) types[parameter.scalar_type()].push_back(parameter);
  }
  return types;
}

}  // namespace

Cuts::Cuts(const task::Model& whole, std::vector<double> weights) : weights_(std::move(weights)) {
  const auto distinct = whole.named_parameters();
  for (const auto& unit : whole.units) {
    for (const auto& split : unit.splits) {
      const auto found =
          std::ranges::find(unit.parameters, split.parameter, &task::NamedTensor::name);
      if (found == unit.parameters.end()) refuse_split(unit.name, split.parameter);
      add({first_name(distinct, found->tensor), found->tensor}, unit.name, split);
    }
  }
  if (!cuts_.empty()) return;
  throw Error(
      ErrorCode::Unsupported,
      "this model's units do not say how their tensors may be cut (Unit::splits), so that "
      "tensor ranks cannot share them: GPT-2 and Llama do (model.name); take mesh.tensor = 1");
}

void Cuts::add(const task::NamedTensor& parameter, const std::string& unit,
               const task::TensorSplit& split) {
  const auto& [name, tensor] = parameter;
  const auto piece = split.grain * split.segments;
  if (split.dim < 0 || split.dim >= tensor.dim() || split.grain < 1 || split.segments < 1 ||
      tensor.size(split.dim) % piece != 0) {
    refuse_split(unit, split.parameter);
  }
  if (const auto known = cuts_.find(name); known != cuts_.end()) {
    if (!same_cut(known->second.split, split)) refuse_split(unit, split.parameter);
    return;
  }
  const auto pieces = tensor.size(split.dim) / piece;
  if (pieces < ranks()) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("'{}' has {} pieces that stay whole (of a fused tensor in each segment; heads "
                    "that share keys and values are one), too few for {} tensor ranks: take "
                    "mesh.tensor = {} or less",
                    split.parameter, pieces, ranks(), pieces));
  }
  auto counts = balance::whole_parts(pieces, weights_);
  for (auto& count : counts) count *= split.grain;
  cuts_[name] = {split, tensor.sizes().vec(), std::move(counts)};
}

PartPlaces Cuts::places(const std::string& parameter, int rank) const {
  const auto& [split, sizes, counts] = cuts_.at(parameter);
  const auto segment = sizes[static_cast<std::size_t>(split.dim)] / split.segments;
  const auto first = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  PartPlaces part{.dim = split.dim, .places = {}};
  for (std::int64_t i = 0; i < split.segments; ++i) {
    part.places.push_back({i * segment + first, counts[static_cast<std::size_t>(rank)]});
  }
  return part;
}

const std::vector<std::int64_t>& Cuts::sizes(const std::string& parameter) const {
  return cuts_.at(parameter).sizes;
}

std::vector<std::int64_t> Cuts::part_sizes(const std::string& parameter, int rank) const {
  const auto& cut = cuts_.at(parameter);
  auto sizes = cut.sizes;
  sizes[static_cast<std::size_t>(cut.split.dim)] =
      cut.counts[static_cast<std::size_t>(rank)] * cut.split.segments;
  return sizes;
}

torch::Tensor Cuts::part(const std::string& parameter, const torch::Tensor& whole, int rank) const {
  if (!has(parameter)) return whole;
  const auto [dim, places] = this->places(parameter, rank);
  std::vector<torch::Tensor> parts;
  for (const auto& [first, count] : places) parts.push_back(whole.narrow(dim, first, count));
  return torch::cat(parts, dim);
}

void Cuts::put(const std::string& parameter, const torch::Tensor& part, int rank,
               const torch::Tensor& whole) const {
  const auto [dim, places] = this->places(parameter, rank);
  std::int64_t here = 0;
  for (const auto& [first, count] : places) {
    whole.narrow(dim, first, count).copy_(part.narrow(dim, here, count));
    here += count;
  }
}

TensorModel::TensorModel(const task::Model& whole, std::shared_ptr<const GroupRanks> ranks,
                         Cuts cuts, Between between, Values values)
    : ranks_(std::move(ranks)), cuts_(std::move(cuts)), between_(between) {
  if (values == Values::of_rank_0) take_values_of_rank_0(whole);
  const torch::NoGradGuard no_grad;
  for (const auto& named : whole.named_parameters()) {
    auto tensor = named.tensor;
    if (cuts_.has(named.name)) {
      tensor.set_data(part_of(named, values));
    } else {
      kept_whole_.push_back(tensor);
    }
  }
  const auto computed = between_ == Between::parts ? in_sequence : together;
  for (const auto& unit : whole.units) model_.units.push_back(computed(unit, ranks_));
}

void TensorModel::take_values_of_rank_0(const task::Model& whole) const {
  const auto& group = ranks_->group();
  check_same_on_all_ranks(whole, group, ranks_->timeout());
  broadcast_model(whole, 0, group, kMessageBytes, ranks_->timeout());
}

torch::Tensor TensorModel::part_of(const task::NamedTensor& parameter, Values values) const {
  const auto& [name, tensor] = parameter;
  const int rank = ranks_->group().rank();
  if (values == Values::of_rank_0) return cuts_.part(name, tensor.detach(), rank);
  return torch::empty(cuts_.part_sizes(name, rank), tensor.options().requires_grad(false));
}

TensorTask::TensorTask(const task::Task& task, std::shared_ptr<const task::TensorRanks> ranks)
    : task_(task), ranks_(std::move(ranks)) {}

torch::Tensor TensorTask::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  const task::TensorScope scope(ranks_);
  return task_.loss_sum(outputs, batch);
}

std::vector<task::Metric> TensorTask::metrics() const {
  auto metrics = task_.metrics();
  for (auto& metric : metrics) {
    if (!metric.sum) continue;
    metric.sum = [ranks = ranks_, alone = std::move(metric.sum)](const task::Values& outputs,
                                                                 const task::Values& batch) {
      const task::TensorScope scope(ranks);
      return alone(outputs, batch);
    };
  }
  return metrics;
}

TensorSums::TensorSums(std::shared_ptr<ParameterStore> replicas,
                       std::shared_ptr<const TensorModel> model)
    : replicas_(std::move(replicas)),
      model_(std::move(model)),
      group_(model_->ranks()->group()),
      figures_(group_) {}

void TensorSums::begin_step() {
  seconds_before_ = model_->ranks()->seconds();
  summing_seconds_ = 0;
}

// Not through the units' sums: these may have been given up.
void TensorSums::after_replicas() {
  if (model_->between() == Between::whole) return;
  const Stopwatch watch;
  const torch::NoGradGuard no_grad;
  for (auto& [type, parameters] : trained_by_type(model_->kept_whole())) sum_gradients(parameters);
  summing_seconds_ = watch.seconds();
}

/// Each rank's are of its own positions. Small, but for those of learnt positions: one message.
void TensorSums::sum_gradients(std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> flat;
  for (auto& parameter : parameters) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = torch::zeros_like(parameter);
    flat.push_back(gradient.flatten());
  }
  const auto all = torch::cat(flat).to(torch::kCPU);
  group_
      .all_reduce(tensor_buffer(all), comm::ReduceOp::sum,
                  Deadline::after(model_->ranks()->timeout()))
      .wait();
  std::int64_t at = 0;
  for (auto& parameter : parameters) {
    auto& gradient = parameter.mutable_grad();
    gradient.copy_(all.narrow(0, at, gradient.numel()).view(gradient.sizes()));
    at += gradient.numel();
  }
}

void TensorSums::after_update() {
  broadcast_tensors(model_->kept_whole(), 0, group_, kWholeMessageBytes,
                    model_->ranks()->timeout());
  replicas_->whole_changed();
}

bool TensorSums::counts(const torch::Tensor& whole) const {
  return group_.rank() == 0 ||
         std::ranges::none_of(model_->kept_whole(),
                              [&](const torch::Tensor& kept) { return kept.is_same(whole); });
}

progress::RankFigures TensorSums::as_one(const progress::RankFigures& mine) {
  figures_.start(mine, Deadline::after(model_->ranks()->timeout()));
  const auto all = figures_.wait();
  auto one = all.front();  // of the samples, which are the same
  double squares = 0, working = 0;
  one.bytes_sent = 0;
  for (const auto& rank : all) {
    squares += rank.gradient_norm * rank.gradient_norm;
    one.compute_seconds = std::max(one.compute_seconds, rank.compute_seconds);
    working = std::max(working, rank.compute_seconds - rank.sum_seconds);
    one.fit = std::max(one.fit, rank.fit);
    one.wishes |= rank.wishes;
    one.communicate_seconds = std::max(one.communicate_seconds, rank.communicate_seconds);
    one.wait_seconds = std::max(one.wait_seconds, rank.wait_seconds);
    one.bytes_sent += rank.bytes_sent;
  }
  one.sum_seconds = one.compute_seconds - working;
  one.gradient_norm = std::sqrt(squares);
  return one;
}

double TensorSums::unit_seconds() const noexcept {
  return model_->ranks()->seconds() - seconds_before_;
}

double TensorSums::communicate_seconds() const noexcept {
  return unit_seconds() + summing_seconds_;
}

}  // namespace bimetal::parallel::tensor
