#include "bimetal/train/share_compute.h"

#include <utility>

namespace bimetal::train {

ReplicaCompute::ReplicaCompute(const task::Task& task, const task::Model& model,
                               const torch::Device& device, parallel::Sync sync,
                               const ComputeOptions& options)
    : sync_(std::move(sync)),
      lanes_(sync_.group().size(), sync_.group().rank()),
      compute_(task, model, device, options) {}

void ReplicaCompute::prepare(std::int64_t samples) {
  passes_ = sync_.store().agree_on_passes(static_cast<int>(compute_.pieces(samples)));
}

Compute::Outcome ReplicaCompute::try_run(std::int64_t samples,
                                         const std::function<task::Values()>& fetch,
                                         const task::Draws& draws) {
  auto& store = sync_.store();
  if (samples > 0) store.expect_passes(static_cast<int>(compute_.pieces(samples, passes_)));
  return compute_.try_run(samples, fetch, backward_into(store), draws, passes_);
}

}  // namespace bimetal::train
