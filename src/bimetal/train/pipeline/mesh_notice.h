#pragma once
// Tells people which rank has which part of a model that is cut.

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/unit.h"

namespace bimetal::train {

/// The operations of each unit of a model, in a step of one replica. If stages have their own
/// numbers of replicas, in a step of all of these. Empty: not known.
using Operations = std::vector<double>;
Operations operations_of_replica(const task::JobTask& task, std::int64_t global_batch,
                                 const parallel::MeshShape& shape);

/// `whole`: the model before it is cut at `begins`, as `mesh` asks; `cuts`: those of its tensors.
/// Several lines: for each stage its ranks, its units, the parameters that each rank keeps, and its
/// work in a step.
std::string notice_of(const parallel::MeshShape& shape, const task::Model& whole,
                      const std::vector<std::size_t>& begins, const job::MeshConfig& mesh,
                      const parallel::StageCuts& cuts, const Operations& operations);

}  // namespace bimetal::train
