#pragma once
// How many stages a job's devices form, and how many share each tensor, if the job leaves that
// open. All devices take part, in their order, which is a smaller question than that of
// mesh_plan.h. Pure.

#include <cstddef>
#include <vector>

#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// What the job says of it.
struct StagesWish {
  int stages = 0;                                ///< 0: any number
  int replicas = 0;                              ///< of each stage; 0: any number
  std::vector<std::size_t> stage_replicas = {};  ///< or a number for each stage
  std::vector<std::size_t> cuts = {};  ///< units that pieces but the first begin with; empty: any
  int tensor = 1;  ///< devices that have a replica's tensors in parts; 0: any number
  std::vector<std::size_t> stage_tensor = {};  ///< or a number for each stage
  /// Of these parts; empty: equal ones, or by speed (and where that does not fit, by memory, too).
  std::vector<double> tensor_weights = {};
  bool parts_by_speed = false;
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;                  ///< pieces of each stage: 1 but for interleaved
  bool any_schedule = false;       ///< whichever is fastest in their place
  int micro_batches = 0;           ///< 0: as many as a run takes by itself
  bool any_micro_batches = false;  ///< or then as many as are fastest
  Keeping keeping = {};   ///< level (pipelines: 0 to 3 of each stage's replicas), recomputation
  bool pipelines = true;  ///< the job has nothing that refuses them
  bool pipelines_in_parts = true;  ///< nor stages whose tensors are in parts
  bool uneven = true;              ///< nor stages with replicas of their own number
  bool own_parts = true;           ///< nor with parts of their own number
};

/// Data parallelism, and of each number of stages the fastest: as many replicas of each where that
/// divides the devices, or, of up to eight devices, any numbers, of which the four that are best by
/// the formula are looked at closely; cut where that is best, unless the wish says where. The same
/// for every number of parts that divides the devices, neighbours having them, and, of up to eight
/// devices, for stages of one each, of which some are such neighbours of one host.
/// The one to take comes first: the fastest that fits, or that which lacks least; of those that are
/// alike within kWorthwhile the one with the fewest parts, then stages. Empty if none can be.
std::vector<MeshChoice> choose_stages(const MeshProblem& on, const StagesWish& wish);

}  // namespace bimetal::plan
