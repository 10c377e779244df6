#pragma once
// What a job's [mesh] asks of a plan.

#include "bimetal/job/job_config.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/stages_choice.h"

namespace bimetal::train {

struct MeasuredPlan;

/// As plan::choose_stages() takes it; what is open stays so. Error(InvalidArgument) for a number of
/// micro-batches that the job's schedule cannot run on its number of stages.
plan::StagesWish wish_of(const job::JobConfig& job, const MeasuredPlan& measured);

/// The mesh that the job would train on: with what it leaves open chosen as training chooses it.
/// `measured`: with a cluster. Errors: those that training has of a mesh that cannot be.
plan::AskedMesh asked_mesh(const job::JobConfig& job, const MeasuredPlan& measured);

}  // namespace bimetal::train
