#pragma once
// The candidates of a plan (mesh_plan.h): ways to train on some or all devices of a cluster. A step
// of the promising ones is simulated.

#include <cstddef>
#include <optional>
#include <vector>

#include "bimetal/plan/mesh/layouts.h"
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

// How many stages a job's devices form, and how many share each tensor, if the job leaves that
// open. All devices take part, in their order, which is a smaller question than that of
// mesh_plan.h. Pure.

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

// The best pipeline of given stages for a job, where the job leaves something open: schedules,
// numbers of micro-batches, weights of parts.

/// Of more devices not every division into stages is looked at.
inline constexpr int kDividedFreely = 8;

/// Whether `a` is to be taken though `b` comes first: it fits and the other does not, or lacks
/// less, or is clearly faster.
bool beats(const MeshChoice& a, const MeshChoice& b);

/// With its step simulated. Nothing if none can be.
std::optional<MeshChoice> pipeline_of(const MeshProblem& on, const StagesWish& wish,
                                      const Layout& layout);

/// The step at a glance: by the formula, in one schedule, in as many micro-batches as a run takes
/// by itself and in four times as many, since short ones suit layouts of unlike stages.
std::optional<MeshChoice> at_a_glance(const MeshProblem& on, StagesWish wish, const Layout& layout);

/// Of the parts of groups of as many devices each, in the order in which they are to be tried;
/// none: the wish has weights for another number of them.
std::vector<std::vector<double>> weights_to_try(const MeshProblem& on, const StagesWish& wish,
                                                const Groups& groups);

// Pipelines of neighbours whose number of parts of tensors differs by stage: for example one device
// with a whole stage before two that share the tensors of the next.

/// With the wish's numbers of parts for each stage, and of replicas. Nothing if that cannot be.
std::optional<MeshChoice> in_parts_as_wished(const MeshProblem& on, const StagesWish& wish);

/// The best of stages of one replica each, some of which are neighbours of one host with parts, if
/// the wish leaves the number of parts open, and of up to kDividedFreely devices. Nothing if none
/// can be.
std::optional<MeshChoice> in_own_parts(const MeshProblem& on, const StagesWish& wish);

}  // namespace bimetal::plan
