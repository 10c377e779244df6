#pragma once
// mesh.stages and mesh.tensor = "auto": the number of stages, where they begin, in which order and
// how many pieces a step goes through them, and how many ranks share each tensor, from what a plan
// measures.

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// `job`, with numbers in the place of each "auto": every rank measures its device's units and the
/// links, as `bimetal plan` does, and the fastest of what all of them can do together, in their
/// order, is chosen; what the job states stays. Tells the observer what and why. The same on every
/// rank; collective. Errors: measure_meshes()'s; InvalidArgument if there is no mesh of these
/// ranks.
job::JobConfig with_mesh(const job::JobConfig& job, comm::Group group,
                         const TrainerOptions& options, progress::Observer& observer);

}  // namespace bimetal::train
