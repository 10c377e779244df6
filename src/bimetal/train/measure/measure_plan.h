#pragma once
// Measures for a plan: every rank's device, its cost of a step, and the link.

#include <optional>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/plan.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/measure/step_probe.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

struct MeasuredPlan {
  std::vector<RankDevice> devices;  ///< one per rank
  bool graphs = false;              ///< train.graphs; no second is of steps with them
  plan::PlanInput input;
  plan::Plan plan;  ///< without predictions where no worker can hold the whole model

  plan::MemoryInput memory_input;
  std::optional<plan::MemoryPlan> memory;  ///< nothing where a rank cannot even make a dry run
  bool own_optimizer = false;              ///< the task brings one, which stages cannot have
  plan::MeshInput mesh_input;
  std::optional<plan::Cluster> cluster;  ///< likewise
  plan::MeshPlan mesh;
};

/// Measures as rank of `group` and predicts; every rank gets the same plan. All ranks measure their
/// devices at the same time, as they will compute at the same time: workers that share one CPU get
/// the part that is theirs. If some compute clearly faster in bfloat16, and the job leaves that
/// open, units are measured in it, too. `for_these`: the job is to run on these ranks; else they
/// stand for others, so that neither its [mesh] nor a lower precision is planned. The options
/// resume and stop_requested play no part. Collective. Errors: those of run_training before its
/// first step, a [mesh] that cannot be included, and of make_plan.
MeasuredPlan measure_plan(const job::JobConfig& job, comm::Group group,
                          const TrainerOptions& options, progress::Observer& observer,
                          bool for_these = true);

/// The part of it that meshes are planned by: units, memory and links, and of devices their names;
/// without plans. Likewise.
MeasuredPlan measure_meshes(const job::JobConfig& job, comm::Group group,
                            const TrainerOptions& options, progress::Observer& observer);

}  // namespace bimetal::train
