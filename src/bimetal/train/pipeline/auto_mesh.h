#pragma once
// mesh.stages and mesh.tensor = "auto": the number of stages, where they begin, in which order and
// how many pieces a step goes through them, and how many ranks share each tensor, from a plan's
// measurements.

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

// The demands of a job's [mesh] on a plan.

struct MeasuredPlan;

/// The same job with one or two stages of one unit at least, and so many parts of tensors, of sizes
/// that a plan states: for whether it may have them.
job::JobConfig in_mesh(job::JobConfig job, int stages, int tensor);

/// In the form of plan::choose_stages(); open settings stay open. Error(InvalidArgument) for a
/// number of micro-batches that the job's schedule cannot run on its number of stages.
plan::StagesWish wish_of(const job::JobConfig& job, const MeasuredPlan& measured);

/// The mesh that the job would train on: with open settings chosen as training chooses them.
/// `measured`: with a cluster. Errors: training's for an impossible mesh.
plan::AskedMesh asked_mesh(const job::JobConfig& job, const MeasuredPlan& measured);

/// `job`, with numbers in the place of each "auto". Every rank measures its device's units and the
/// links, as `bimetal plan` does. The fastest mesh of all of them, in their order, is chosen.
/// Numbers that the job states stay. Tells the observer the choice and the reason. The same on
/// every rank; collective. Errors: measure_meshes()'s; InvalidArgument if there is no mesh of these
/// ranks.
job::JobConfig with_mesh(const job::JobConfig& job, comm::Group group,
                         const TrainerOptions& options, progress::Observer& observer);

/// The same for a job whose ranks have changed: where its numbers are of more ranks than there are,
/// or of others, all of its mesh is open, which the observer is told. Error(OutOfMemory) on all
/// ranks if the model does not fit, which says by how much.
job::JobConfig with_mesh_again(const job::JobConfig& job, comm::Group group,
                               const TrainerOptions& options, progress::Observer& observer);

}  // namespace bimetal::train
