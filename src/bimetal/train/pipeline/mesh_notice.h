#pragma once
// Who has which part of a model that is cut, for people.

#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/task/unit.h"

namespace bimetal::train {

/// `whole`: before it is cut at `begins`, as `mesh` asks; `cuts`: of its tensors.
/// Several lines: of each stage its ranks, its units and what parameters each of the ranks keeps.
std::string notice_of(const parallel::MeshShape& shape, const task::Model& whole,
                      const std::vector<std::size_t>& begins, const job::MeshConfig& mesh,
                      const parallel::StageCuts& cuts);

}  // namespace bimetal::train
