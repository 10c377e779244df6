#pragma once
// Who has which part of a model that is cut, for people.

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/unit.h"

namespace bimetal::train {

/// Of each unit of a model, in a step of a replica, or where stages have their own numbers of these
/// of all; empty: not known.
using Operations = std::vector<double>;
Operations operations_of_replica(const task::JobTask& task, std::int64_t global_batch,
                                 const parallel::MeshShape& shape);

/// `whole`: before it is cut at `begins`, as `mesh` asks; `cuts`: of its tensors.
/// Several lines: of each stage its ranks, its units, what parameters each of the ranks keeps and
/// how much it computes in a step.
std::string notice_of(const parallel::MeshShape& shape, const task::Model& whole,
                      const std::vector<std::size_t>& begins, const job::MeshConfig& mesh,
                      const parallel::StageCuts& cuts, const Operations& operations);

}  // namespace bimetal::train
