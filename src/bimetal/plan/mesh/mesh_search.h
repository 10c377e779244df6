#pragma once
// The candidates of a plan (mesh_plan.h): ways to train on some or all devices of a cluster. A step
// of the promising ones is simulated.
//
// The time and memory of a step in which every device has the whole model, or shards of it.
//
// Which devices may form which stages of a pipeline: candidates for a search.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/plan/mesh/cluster.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// One device alone, or several with balanced shares; shards (levels 1 to 3) in proportion to their
/// memory. Each computes as many samples at once as its memory has room for. Nothing where a device
/// would get no sample, unless it `may_idle`.
std::optional<MeshChoice> choose_data(const MeshProblem& on, const std::vector<int>& devices,
                                      const Keeping& keeping, bool may_idle = false);

/// Units that were measured one by one, scaled so that all of them together take as long as a whole
/// step of so many samples, so many of them at once: seconds, without an update. Unknown figures
/// stay as they are.
void take_whole_step(ModelFacts& facts, double step_s, double samples, double at_once);

/// The fraction of shards for each of these devices: in proportion to their memory.
std::vector<double> shards_by_memory(const Cluster& cluster, const std::vector<int>& devices);

/// Seconds for each sample of a step on this device, when so many are computed at once.
double seconds_per_sample(const MeshProblem& on, int device, double at_once);

/// All devices, by the time of a single sample.
std::vector<int> fastest_first(const MeshProblem& on);

// The time and memory of a step of one pipeline.

struct PipelineOptions {
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;  ///< pieces of each stage
  int micro_batches = 1;
  Keeping keeping = {};  ///< level 0 to 3, recomputation of each unit or none
  /// Units that pieces but the first begin with; empty: the best.
  std::vector<std::size_t> cuts = {};
  bool any_size = false;  ///< micro-batches may be larger than MeshInput::micro_batch
};

/// Numbers of micro-batches that are worth a look where so many devices compute one after the
/// other, rising: powers of two, and what leaves a bubble from half of a step to a tenth.
std::vector<int> micro_batch_counts(int in_line, std::int64_t most);

/// The order in which micro-batches go through the stages.
struct WayThrough {
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;
};

/// Those that are worth simulating for these stages of a model of so many units, kept as `keeping`
/// says; the first is to be taken unless another is clearly faster.
std::vector<WayThrough> ways_worth_a_try(const Cluster& cluster, const Keeping& keeping,
                                         const Layout& layout, std::size_t units);

/// Cuts the model for these stages (schedule/cut.h) and predicts the step by plain_bound and the
/// exchanges behind it. If no cut fits into memory, it takes the one that is fastest without regard
/// to it, and notes the missing memory. Nothing for fewer units than pieces, micro-batches without
/// a sample for every device, cuts that cannot be, or interleaved stages that are no box, or whose
/// number does not divide the micro-batches.
std::optional<MeshChoice> choose_cut(const MeshProblem& on, const Layout& layout,
                                     const PipelineOptions& options);

/// The same choice with its step simulated, action by action.
MeshChoice simulated(const MeshProblem& on, MeshChoice choice);

/// Its peak on each device, and the memory that one lacks.
void take_memory(const MeshProblem& on, MeshChoice& choice);

/// Clusters of up to so many devices are searched through: every order of every part of them.
inline constexpr int kSearchedThrough = 4;

/// `fastest_first`: all devices; `units`: stages at most. Up to kSearchedThrough: every sequence of
/// two or more as stages of one device each or of any number; those that are alike once. Beyond:
/// the 2, 3, … fastest and the ones with most memory as stages, in the order of their speed, memory
/// and hosts, either way; and boxes of them, in which either the stages or the replicas are alike.
/// With more than 16 devices not every number of them is tried, but those at which a kind of device
/// ends, and powers of two, and only in the order of speed, memory or hosts. With up to 16 also one
/// stage for each host, and one for each kind of device. Without `any_number`, orders of more than
/// kSearchedThrough devices have all of them.
std::vector<Layout> layouts_of(const Cluster& cluster, const std::vector<int>& fastest_first,
                               std::size_t units, bool any_number = true);

/// `devices` in their order as that many or fewer stages of any number of replicas, but of one
/// each, and all in one.
std::vector<Layout> parts_of(const std::vector<int>& devices, std::size_t stages);

/// All devices, or groups of them, in their order: so many in each stage.
Layout in_their_order(const std::vector<std::size_t>& counts);

/// Layouts one change away: two devices have changed places, or one has gone.
std::vector<Layout> neighbours_of(const Layout& layout);

/// Devices in groups of as many each, which compute every layer together.
using Groups = std::vector<std::vector<int>>;

/// Ways to form groups of `tensor` devices, the faster first in each. Up to kSearchedThrough
/// devices: every one. Beyond: equal devices of each host; and with up to 16 devices also devices
/// that are next in the order of speed, wherever they are.
std::vector<Groups> groupings_of(const Cluster& cluster, const std::vector<int>& fastest_first,
                                 std::size_t tensor);

/// Some groups of `parts` devices, and devices beside them that keep every tensor whole.
struct GroupsBeside {
  Groups groups = {};
  std::vector<int> whole = {};
};

/// Ways to form such groups from devices of one host each, and one of those that are alike. With up
/// to kSearchedThrough devices these are all ways. Beyond, as many groups as leave a device whole:
/// from all hosts, and from the fastest host with so many devices.
std::vector<GroupsBeside> groupings_beside(const Cluster& cluster,
                                           const std::vector<int>& fastest_first,
                                           std::size_t parts);

bool in_one_host(const Cluster& cluster, const std::vector<int>& group);

/// How many devices of a sorted list are worth trying.
std::vector<std::size_t> counts_of(const Cluster& cluster, const std::vector<int>& sorted);

/// Meshes that fit come before those that do not, then the faster one. Among those that do not fit,
/// the one that lacks least.
bool better(const MeshChoice& a, const MeshChoice& b);

struct FoundMeshes {
  std::vector<MeshChoice> choices = {};
  std::size_t tried = 0;
};

/// Each device alone, data parallelism and its levels of ZeRO up to `most_level`, pipelines: those
/// of each kind that are worth a look, in no order.
FoundMeshes search_meshes(const MeshProblem& on, int most_level);

// How many stages a job's devices form, and how many share each tensor, if the job leaves that
// open. All devices take part, in their order, which is a smaller question than that of
// mesh_plan.h. Pure.

/// The job's settings for it.
struct StagesWish {
  int stages = 0;                                ///< 0: any number
  int replicas = 0;                              ///< of each stage; 0: any number
  std::vector<std::size_t> stage_replicas = {};  ///< or a number for each stage
  std::vector<std::size_t> cuts = {};  ///< units that pieces but the first begin with; empty: any
  int tensor = 1;  ///< devices that have a replica's tensors in parts; 0: any number
  std::vector<std::size_t> stage_tensor = {};  ///< or a number for each stage
  /// The weights of parts; empty: equal ones, or by speed (and where that does not fit, by memory,
  /// too).
  std::vector<double> tensor_weights = {};
  bool parts_by_speed = false;
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;                  ///< pieces of each stage: 1 but for interleaved
  bool any_schedule = false;       ///< the fastest one in their place
  int micro_batches = 0;           ///< 0: as many as a run takes by itself
  bool any_micro_batches = false;  ///< or then as many as are fastest
  Keeping keeping = {};   ///< level (pipelines: 0 to 3 of each stage's replicas), recomputation
  bool pipelines = true;  ///< the job has nothing that refuses them
  bool pipelines_in_parts = true;  ///< nor stages whose tensors are in parts
  bool uneven = true;              ///< nor stages with replicas of their own number
  bool own_parts = true;           ///< nor with parts of their own number
};

/// Data parallelism, and the fastest way for each number of stages. Stages have as many replicas
/// each if that divides the devices. With up to eight devices they may have any numbers, and the
/// four best by the formula are simulated. They are cut at the best place, unless the wish says
/// where. The same for every number of parts that divides the devices, with neighbours as parts.
/// With up to eight devices also for stages of one device each, some of them such neighbours on one
/// host. The one to take comes first: the fastest that fits, or the one that lacks least. Among
/// equals within kWorthwhile it is the one with the fewest parts, then stages. Empty if there is
/// none.
std::vector<MeshChoice> choose_stages(const MeshProblem& on, const StagesWish& wish);

// The best pipeline of given stages for a job, where the job leaves something open: schedules,
// numbers of micro-batches, weights of parts.

/// With more devices not every division into stages is tried.
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

/// The weights of parts of groups with as many devices each, in the order in which to try them.
/// None: the wish has weights for another number of parts.
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
