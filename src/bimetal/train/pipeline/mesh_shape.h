#pragma once
// The ranks of a mesh, by what the job says of it.

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"

namespace bimetal::train {

/// The mesh that `mesh` asks for in a job of `ranks` ranks; its stages have a number. Errors: those
/// of parallel::fit_mesh.
inline parallel::MeshShape shape_of(const job::MeshConfig& mesh, int ranks) {
  return parallel::fit_mesh({.stages = static_cast<int>(mesh.stages),
                             .replicas = static_cast<int>(mesh.replicas),
                             .tensor = static_cast<int>(mesh.tensor),
                             .uneven = {mesh.stage_replicas.begin(), mesh.stage_replicas.end()},
                             .parts = {mesh.stage_tensor.begin(), mesh.stage_tensor.end()}},
                            ranks);
}

}  // namespace bimetal::train
