#pragma once
// The mesh in which a trained model is used: as [mesh] has it for training, but for what training
// alone needs. What [mesh] leaves open ("auto") becomes stages.

#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"

namespace bimetal::cli {

/// For one text, which goes through one replica: `ranks` workers are its stages, where the mesh
/// leaves their number open (nothing said, or "auto"). Error(InvalidArgument) for a mesh of another
/// number of ranks, with a number that would do.
job::MeshConfig mesh_of_text(job::MeshConfig mesh, int ranks);

/// For an evaluation: where stages or tensor are "auto", and no number of stages is stated (a list
/// in tensor states it), they are as many as there are workers, without replicas.
job::MeshConfig mesh_of_evaluation(job::MeshConfig mesh, int ranks);

/// Whether the mesh cuts the model: a number of stages or parts of tensors, "auto" included.
bool cuts_model(const job::MeshConfig& mesh);

/// The job without what training alone looks at, and what alone would refuse a mesh: levels of
/// ZeRO, compression, parameter servers, the optimizer, recomputation, sequence parallelism.
job::JobConfig job_of_use(job::JobConfig job);

/// The same of a worker: nothing is offloaded where nothing is trained.
job::WorkerSpec worker_of_use(job::WorkerSpec worker);

/// The workers of the job's first replica, which a text goes through. All workers if the mesh is
/// open, cuts nothing or has another number of workers.
std::vector<std::string> workers_of_text(const job::JobConfig& job);

}  // namespace bimetal::cli
