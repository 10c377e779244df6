#pragma once
// A training run's form of [mesh]: which rank has which stage, and the object that computes it.

#include <memory>
#include <optional>

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/task/task.h"
#include "bimetal/train/measure/memory_check.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "bimetal/train/pipeline/stage_compute.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {

/// The stages of `mesh` (as make_mesh() has it) and their cuts, which depend on memory if the model
/// is large; empty for a job with one stage. `batch`: weight of a global batch. The plan becomes
/// that of `memory`. Collective. Errors: InvalidArgument for micro-batches that the schedule cannot
/// run; those of require_possible(), choose_cuts() and MemoryCheck::refuse(). The same on every
/// rank.
StagePlan plan_stages(const job::JobConfig& job, std::shared_ptr<const parallel::Mesh> mesh,
                      const task::Task& task, const Computing& on, std::int64_t batch,
                      MemoryCheck& memory, progress::Observer& observer);

/// To be called once mesh.replicas = "auto" has its number. Error(Unsupported) of
/// job::require_possible(); Error(InvalidArgument) for more micro-batches (mesh.micro_batches) than
/// there are samples in a step for each pipeline: some would be empty. A number chosen by the
/// program may be rounded up.
void require_possible(const job::JobConfig& job, const parallel::MeshShape& shape);

/// For the run's report; nothing of a job with one stage.
std::optional<progress::MeshReport> report_of(const StagePlan& plan, const job::MeshConfig& mesh);

/// Computes this rank's stage of `task`, together with its tensor ranks if there are any; nullptr
/// for a job with one stage. Collective. Errors: StageCompute's.
std::shared_ptr<StageCompute> make_stage_compute(const job::JobConfig& job, const task::Task& task,
                                                 const StagePlan& plan, const TrainedModel& trained,
                                                 const Computing& on);

}  // namespace bimetal::train
