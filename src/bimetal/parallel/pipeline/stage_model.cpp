#include "bimetal/parallel/pipeline/stage_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel::pipeline {
namespace {

std::span<float> first_floats(const torch::Tensor& tensor, std::int64_t count) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(count)};
}

/// `lost` with room for as many samples as `floats` has.
torch::Tensor made_to_fit(const torch::Tensor& lost, const torch::Tensor& floats) {
  const bool alike = lost.defined() && lost.sizes().slice(1) == floats.sizes().slice(1);
  if (alike && lost.size(0) >= floats.size(0)) return lost;
  auto larger = torch::zeros(floats.sizes(), torch::kFloat32);
  if (alike) larger.narrow(0, 0, lost.size(0)).copy_(lost);
  return larger;
}

/// The ranks of mesh.pipeline() that have one of `stages`.
std::vector<int> peers_of(const Mesh& mesh, const std::vector<int>& stages) {
  if (mesh.shape().even()) return stages;
  std::vector<int> peers;
  for (int rank = 0; rank < mesh.shape().ranks(); ++rank) {
    const int stage = place_of(mesh.shape(), rank).stage;
    if (std::ranges::find(stages, stage) != stages.end()) peers.push_back(rank);
  }
  return peers;
}

}  // namespace

torch::Tensor LostGradients::encode(comm::Scheme scheme, const Place& place, torch::Tensor floats) {
  if (floats.dim() == 0) floats = floats.view({1});
  auto& lost = lost_[place];
  lost = made_to_fit(lost, floats);
  const auto wanted = first_floats(floats, floats.numel());
  const auto kept = first_floats(lost, floats.numel());
  comm::add(wanted, kept);
  auto code = encode_tensor(scheme, floats);
  const auto sent = decode_tensor(scheme, code, floats);
  comm::remember_lost(wanted, first_floats(sent, sent.numel()), 1.0f, kept);
  return code;
}

namespace {

task::Model part_of(const task::Model& whole, std::size_t first, std::size_t last) {
  return {{whole.units.begin() + static_cast<std::ptrdiff_t>(first),
           whole.units.begin() + static_cast<std::ptrdiff_t>(last)}};
}

task::Model model_of_stage(const task::Model& whole, const std::vector<std::size_t>& begins,
                           int stages, int stage) {
  task::Model model;
  for (const auto& [first, last] : schedule::pieces_of(begins, whole.units.size(), stages, stage)) {
    const auto part = part_of(whole, first, last);
    model.units.insert(model.units.end(), part.units.begin(), part.units.end());
  }
  return model;
}

bool has(const std::vector<task::NamedTensor>& tensors, const torch::Tensor& tensor) {
  return std::ranges::any_of(
      tensors, [&](const task::NamedTensor& other) { return other.tensor.is_same(tensor); });
}

/// Under their names in the whole model.
void rename(std::vector<task::NamedTensor>& tensors, const std::vector<task::NamedTensor>& whole) {
  for (auto& [name, tensor] : tensors) {
    for (const auto& known : whole) {
      if (known.tensor.is_same(tensor)) name = known.name;
    }
  }
}

task::Model renamed(task::Model model) {
  const auto parameters = model.named_parameters(), buffers = model.named_buffers();
  for (auto& unit : model.units) {
    rename(unit.parameters, parameters);
    rename(unit.buffers, buffers);
  }
  return model;
}

std::vector<Tied> tied_between(const task::Model& whole, const std::vector<std::size_t>& begins,
                               int stages, int stage) {
  std::vector<std::vector<task::NamedTensor>> parameters;
  for (int s = 0; s < stages; ++s) {
    parameters.push_back(model_of_stage(whole, begins, stages, s).named_parameters());
  }
  std::vector<Tied> all;
  for (const auto& [name, tensor] : whole.named_parameters()) {
    if (!tensor.requires_grad()) continue;
    Tied tied;
    tied.name = name;
    for (int s = 0; s < stages; ++s) {
      if (has(parameters[static_cast<std::size_t>(s)], tensor)) tied.stages.push_back(s);
    }
    if (tied.stages.size() < 2) continue;
    if (std::ranges::find(tied.stages, stage) != tied.stages.end()) tied.tensor = tensor;
    all.push_back(std::move(tied));
  }
  return all;
}

}  // namespace

std::vector<std::size_t> begins_of(const std::vector<std::int64_t>& cuts, std::size_t pieces,
                                   std::size_t units, const std::string& table) {
  if (pieces > units) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a model of {} units cannot be cut into {} pieces: {}stages (times "
                            "{}chunks with \"interleaved\") must be at most {}",
                            units, pieces, table, table, units));
  }
  if (cuts.size() + 1 != pieces) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}cuts has {} units for {} pieces of the model: give the {} units "
                            "at which those but the first begin, or none",
                            table, cuts.size(), pieces, pieces - 1));
  }
  std::vector<std::size_t> begins = {0};
  for (const auto cut : cuts) {
    if (cut <= static_cast<std::int64_t>(begins.back()) ||
        cut >= static_cast<std::int64_t>(units)) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{}cuts = [{}]: units at which a model of {} may be cut are 1 to "
                              "{}, each larger than the one before",
                              table, fmt::join(cuts, ", "), units, units - 1));
    }
    begins.push_back(static_cast<std::size_t>(cut));
  }
  return begins;
}

StageModel make_stage(const task::Model& model, const std::vector<std::size_t>& begins, int stages,
                      int stage) {
  const auto whole = renamed(model);
  StageModel made;
  for (const auto& [first, last] : schedule::pieces_of(begins, whole.units.size(), stages, stage)) {
    made.pieces.push_back(part_of(whole, first, last));
  }
  made.model = model_of_stage(whole, begins, stages, stage);
  made.tied = tied_between(whole, begins, stages, stage);
  return made;
}

StageModel with_units(StageModel stage, const task::Model& model) {
  std::size_t next = 0;
  for (auto& piece : stage.pieces) {
    for (auto& unit : piece.units) unit = model.units[next++];
  }
  stage.model = model;
  return stage;
}

std::string describe_units(const task::Model& whole, const std::vector<std::size_t>& begins,
                           int stages, int stage) {
  std::vector<std::string> names;
  for (const auto& unit : whole.units) names.push_back(unit.name);
  return units_text(names, schedule::pieces_of(begins, names.size(), stages, stage));
}

shard::StagePasses passes_of_stage(const Mesh& mesh, const std::vector<Tied>& tied) {
  shard::StagePasses passes;
  for (const auto& one : tied) {
    if (one.tensor.defined()) passes.late.push_back(one.tensor);
  }
  // If stages have the same number of replicas, these go through the same schedule, each by itself,
  // and come to the same pass at the same time. Otherwise one may need messages that another has
  // yet to send.
  if (!mesh.shape().even()) passes.patience = std::chrono::milliseconds(20);
  return passes;
}

StageSums::StageSums(std::shared_ptr<const Mesh> mesh, std::shared_ptr<ParameterStore> own,
                     const std::vector<Tied>& tied, std::chrono::milliseconds timeout,
                     std::shared_ptr<const tensor::TensorModel> parts)
    : mesh_(std::move(mesh)),
      world_(mesh_->world()),
      own_(std::move(own)),
      parts_(std::move(parts)),
      timeout_(timeout) {
  auto pipeline = mesh_->pipeline();
  std::map<std::vector<int>, comm::Group> groups;
  for (const auto& one : tied) {
    // Stages outside of it ask for the group, too, and get none.
    const auto [place, fresh] = groups.try_emplace(one.stages);
    if (fresh) place->second = pipeline.subgroup(peers_of(*mesh_, one.stages));
    if (one.tensor.defined()) shared_.push_back(shared_with(place->second, one));
  }
}

// A pipeline of one part of tensors has the same part of this one on all of its stages. Where all
// ranks are a pipeline, whole gradients are summed. Each rank gives its part. If the tensor is not
// cut, or not on this stage, the first part's rank gives all of it.
StageSums::Shared StageSums::shared_with(comm::Group stages, const Tied& tied) const {
  Shared shared{tied.tensor, std::move(stages), mesh_->place().stage == tied.stages.front()};
  if (mesh_->shape().even()) return shared;
  if (parts_ && parts_->cuts().has(tied.name)) {
    shared.cut = tied.name;
  } else {
    shared.given = mesh_->place().tensor == 0;
  }
  return shared;
}

// Each pipeline sums by itself what its replicas have summed, the same numbers in the same order;
// or the replicas sum what their pipelines have.
void StageSums::before_replicas() {
  if (sums_first()) sum_shared(false);
}

void StageSums::after_replicas() {
  if (!sums_first()) sum_shared(true);
}

void StageSums::sum_shared(bool replicas_have_summed) {
  const Stopwatch watch;
  for (auto& shared : shared_) sum(shared, replicas_have_summed);
  waited_ += watch.seconds();
}

// Where a pipeline has several replicas of a stage, one of them gives the gradient that they have
// summed, or will sum, and the others give zeros.
void StageSums::sum(Shared& shared, bool replicas_have_summed) const {
  auto& gradient = shared.tensor.mutable_grad();
  if (!gradient.defined()) gradient = torch::zeros_like(shared.tensor);
  const auto host = gradient.to(torch::kCPU).contiguous();
  if (!shared.given || (replicas_have_summed && !stands_for_stage())) host.zero_();
  const auto all = shared.cut.empty() ? host : whole_with(shared.cut, host);
  shared.stages.all_reduce(tensor_buffer(all), comm::ReduceOp::sum, Deadline::after(timeout_))
      .wait();
  if (!shared.cut.empty()) {
    host.copy_(parts_->cuts().part(shared.cut, all, mesh_->place().tensor));
  }
  if (!replicas_have_summed && !stands_for_stage()) host.zero_();
  if (!host.is_same(gradient)) gradient.copy_(host);
}

/// A whole gradient that has this rank's part of it, and 0 elsewhere.
torch::Tensor StageSums::whole_with(const std::string& name, const torch::Tensor& part) const {
  const auto& cuts = parts_->cuts();
  auto whole = torch::zeros(cuts.sizes(name), part.options());
  cuts.put(name, part, mesh_->place().tensor, whole);
  return whole;
}

bool StageSums::counts(const torch::Tensor& whole) const {
  if (!own_->in_shards() && mesh_->place().replica != 0) return false;
  const auto found = std::ranges::find_if(
      shared_, [&](const Shared& shared) { return shared.tensor.is_same(whole); });
  return found == shared_.end() || found->counted;
}

}  // namespace bimetal::parallel::pipeline
