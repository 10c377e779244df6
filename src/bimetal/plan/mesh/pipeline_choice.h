#pragma once
// What a step of one pipeline comes to, in time and memory.

#include <optional>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

struct PipelineOptions {
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int micro_batches = 1;
  Keeping keeping = {};  ///< level 0 to 3, recomputation of each unit or none
};

/// Cuts the model for these stages (schedule/cut.h) and predicts the step by plain_bound and the
/// exchanges behind it. Where no cut fits into memory, the one that is fastest without regard to
/// it, with what is missing. Nothing for fewer units than stages, micro-batches without a sample
/// for every device, or a schedule that cannot be.
std::optional<MeshChoice> choose_cut(const MeshInput& input, const Cluster& cluster,
                                     const Layout& layout, const PipelineOptions& options);

/// The same choice with its step simulated, action by action.
MeshChoice simulated(const MeshInput& input, const Cluster& cluster, MeshChoice choice);

/// Its peak on each device, and what one lacks.
void take_memory(const MeshInput& input, const Cluster& cluster, MeshChoice& choice);

}  // namespace bimetal::plan
