#pragma once
// The mesh in which a trained model is used: as [mesh] has it for training, but for what training
// alone needs.

#include "bimetal/job/job_config.h"

namespace bimetal::cli {

/// For one text, which goes through one replica: `ranks` workers are its stages, where the mesh
/// leaves their number open (nothing said, or "auto"). Error(InvalidArgument) for a mesh of another
/// number of ranks, with what would do.
job::MeshConfig mesh_of_text(job::MeshConfig mesh, int ranks);

/// For an evaluation: stages = "auto" are as many as there are workers, without replicas.
job::MeshConfig mesh_of_evaluation(job::MeshConfig mesh, int ranks);

/// Whether the mesh cuts the model: a number of stages, "auto" included, or parts of tensors.
bool cuts_model(const job::MeshConfig& mesh);

}  // namespace bimetal::cli
