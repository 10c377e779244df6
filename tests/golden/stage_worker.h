#pragma once
// One rank's stage of a golden training.

#include <memory>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/train/pipeline/stage_compute.h"
#include "golden/training_run.h"

namespace bimetal::golden {

struct StageWorker {
  std::shared_ptr<const task::Task> task;  ///< as its ranks compute it
  parallel::Sync sync;
  std::shared_ptr<train::StageCompute> compute;
  std::vector<torch::Tensor> parameters;                   ///< of the stage, each once
  std::shared_ptr<parallel::shard::ShardedModel> sharded;  ///< above level 0

  /// The whole model's, undefined where another stage has them. Collective.
  std::vector<torch::Tensor> among(const task::Model& whole) const;
};

/// Brings all ranks to rank 0's parameters and cuts the model, and its tensors as plan.tensor has
/// it. Collective.
StageWorker make_stage_worker(const TrainingPlan& plan, const task::Task& task,
                              const task::Model& model, comm::Group group);

}  // namespace bimetal::golden
