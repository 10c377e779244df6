#pragma once
// Where a pipeline's model may be cut, in the form of schedule/cut.h.

#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// Of a choice whose stages have devices and samples, but no units yet: what each unit takes on
/// each stage, what lies between these, and what fits into their devices. What it is made of must
/// outlive it.
parallel::schedule::CutProblem cut_problem(const MeshInput& input, const Cluster& cluster,
                                           const MeshChoice& choice);

}  // namespace bimetal::plan
