#pragma once
// The candidates of a plan (mesh_plan.h): ways to train on some or all devices of a cluster. A step
// of the promising ones is simulated.

#include <cstddef>
#include <vector>

#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// What fits before what does not, then the faster; of what does not, what lacks least.
bool better(const MeshChoice& a, const MeshChoice& b);

struct FoundMeshes {
  std::vector<MeshChoice> choices = {};
  std::size_t tried = 0;
};

/// Each device alone, data parallelism and its levels of ZeRO up to `most_level`, pipelines: of
/// each kind those that are worth a look, in no order.
FoundMeshes search_meshes(const MeshProblem& on, int most_level);

}  // namespace bimetal::plan
