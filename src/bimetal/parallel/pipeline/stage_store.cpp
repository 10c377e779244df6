#include "bimetal/parallel/pipeline/stage_store.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::pipeline {

namespace {

/// Who has one of `stages`, as ranks of mesh.pipeline().
std::vector<int> peers_of(const Mesh& mesh, const std::vector<int>& stages) {
  const auto widths = mesh.widths();
  std::vector<int> peers;
  for (const int stage : stages) {
    for (int replica = 0; replica < widths[static_cast<std::size_t>(stage)]; ++replica) {
      peers.push_back(mesh.peer(stage, replica));
    }
  }
  return peers;
}

}  // namespace

shard::StagePasses passes_of_stage(const Mesh& mesh, const std::vector<Tied>& tied) {
  shard::StagePasses passes;
  for (const auto& [tensor, stages] : tied) {
    if (tensor.defined()) passes.late.push_back(tensor);
  }
  // Replicas of one number go through the same schedule, each by itself, and come to the same pass
  // at the same time; of others one may have to do with what another has yet to send.
  if (!mesh.shape().even()) passes.patience = std::chrono::milliseconds(20);
  return passes;
}

StageStore::StageStore(std::shared_ptr<const Mesh> mesh, std::shared_ptr<ParameterStore> own,
                       const std::vector<Tied>& tied, std::chrono::milliseconds timeout)
    : mesh_(std::move(mesh)), own_(std::move(own)), timeout_(timeout) {
  auto pipeline = mesh_->pipeline();
  std::map<std::vector<int>, comm::Group> groups;
  for (const auto& [tensor, stages] : tied) {
    // Stages outside of it ask for the group, too, and get none.
    const auto [place, fresh] = groups.try_emplace(stages);
    if (fresh) place->second = pipeline.subgroup(peers_of(*mesh_, stages));
    if (!tensor.defined()) continue;
    shared_.push_back({tensor, place->second, mesh_->place().stage == stages.front()});
  }
}

void StageStore::begin_step(std::int64_t weight, double scale) {
  waited_ = 0;
  own_->begin_step(weight, scale);
}

void StageStore::backward(const torch::Tensor& loss, std::int64_t part) {
  own_->backward(loss, part);
}

void StageStore::backward_last(const torch::Tensor& loss, std::int64_t part) {
  own_->backward_last(loss, part);
}

void StageStore::run_pass(const std::function<void()>& backward, bool last) {
  own_->run_pass(backward, last);
}

// Each pipeline sums by itself what its replicas have summed, the same numbers in the same order;
// or the replicas sum what their pipelines have.
void StageStore::finish_step() {
  own_->finish_passes();
  if (sums_first()) sum_shared(false);
  own_->finish_step();
  if (!sums_first()) sum_shared(true);
}

void StageStore::sum_shared(bool replicas_have_summed) {
  const Stopwatch watch;
  for (auto& shared : shared_) sum(shared, replicas_have_summed);
  waited_ += watch.seconds();
}

// Where a pipeline has several replicas of a stage, what they have summed, or are to sum yet, comes
// from one of them, and zeros from the others.
void StageStore::sum(Shared& shared, bool replicas_have_summed) const {
  auto& gradient = shared.tensor.mutable_grad();
  if (!gradient.defined()) gradient = torch::zeros_like(shared.tensor);
  const auto host = gradient.to(torch::kCPU).contiguous();
  if (replicas_have_summed && !stands_for_stage()) host.zero_();
  shared.stages.all_reduce(tensor_buffer(host), comm::ReduceOp::sum, Deadline::after(timeout_))
      .wait();
  if (!replicas_have_summed && !stands_for_stage()) host.zero_();
  if (!host.is_same(gradient)) gradient.copy_(host);
}

bool StageStore::counts(const torch::Tensor& parameter) const {
  if (!own_->in_shards() && mesh_->place().replica != 0) return false;
  if (!own_->counts(parameter)) return false;
  const auto whole = own_->whole_of(parameter);
  const auto found = std::ranges::find_if(
      shared_, [&](const Shared& shared) { return shared.tensor.is_same(whole); });
  return found == shared_.end() || found->counted;
}

}  // namespace bimetal::parallel::pipeline
