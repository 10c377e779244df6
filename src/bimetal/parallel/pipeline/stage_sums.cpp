#include "bimetal/parallel/pipeline/stage_sums.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::pipeline {

namespace {

/// Who has one of `stages`, as ranks of mesh.pipeline().
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

shard::StagePasses passes_of_stage(const Mesh& mesh, const std::vector<Tied>& tied) {
  shard::StagePasses passes;
  for (const auto& one : tied) {
    if (one.tensor.defined()) passes.late.push_back(one.tensor);
  }
  // Replicas of one number go through the same schedule, each by itself, and come to the same pass
  // at the same time; of others one may have to do with what another has yet to send.
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
// ranks are a pipeline, whole gradients are summed: each rank gives its part, and of a tensor that
// is not cut, or not on this stage, the first part's.
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

// Where a pipeline has several replicas of a stage, what they have summed, or are to sum yet, comes
// from one of them, and zeros from the others.
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
