#pragma once
// How many stages a job's devices form where it leaves that open: all of them take part, in their
// order, which is a smaller question than mesh_plan.h's. Pure.

#include <vector>

#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// What the job says of it.
struct StagesWish {
  int replicas = 0;  ///< of each stage; 0: any number
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int micro_batches = 0;  ///< 0: as many as a run takes by itself
  Keeping keeping = {};   ///< level (pipelines: 0 or 1 of each stage's replicas), recomputation
  bool pipelines = true;  ///< the job has nothing that refuses them
  bool uneven = true;     ///< nor stages with replicas of their own number
};

/// Data parallelism, and of each number of stages the fastest: as many replicas of each where that
/// divides the devices, or, of up to eight devices, any numbers; cut where that is best.
/// The one to take comes first: the fastest that fits, or that which lacks least; of those that are
/// alike within kWorthwhile the one with the fewest stages. Empty if none can be.
std::vector<MeshChoice> choose_stages(const MeshInput& input, const Cluster& cluster,
                                      const StagesWish& wish);

}  // namespace bimetal::plan
