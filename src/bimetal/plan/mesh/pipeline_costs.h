#pragma once
// The costs of the parts of a pipeline's step: passes, messages between stages, exchanges after
// them.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/parallel/schedule/simulate.h"
#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// Forward and backward of these units, of so many samples at once.
struct Passes {
  double forward = 0, backward = 0;
};
Passes passes_of(const MeshProblem& on, int device, const UnitRange& units, double samples,
                 bool recomputed);
/// The passes of all pieces of a stage.
Passes passes_of(const MeshProblem& on, int device, const MeshStage& stage, double samples,
                 bool recomputed);

/// The samples that a replica computes of each of its micro-batches, at least one. All of them if
/// stages are not even.
double at_once(const MeshChoice& choice, std::size_t stage, std::size_t replica);

/// The part of a replica's load on its stage that belongs to no unit.
StageLoad load_of(const MeshInput& input, const MeshChoice& choice, std::size_t stage,
                  std::size_t replica, double shard);

/// The loads of all replicas of a stage, with shards by memory.
std::vector<StageLoad> loads_of(const MeshProblem& on, const MeshChoice& choice, std::size_t stage);

/// Seconds in which what unit `last` gives crosses from a stage to the next, from the last one to
/// the first, and its gradient back.
std::pair<double, double> crossing(const MeshProblem& on, const MeshChoice& choice,
                                   std::size_t stage, std::size_t last);

/// The cost of each piece for a micro-batch, in the model's order. It is the part of its stage's
/// slowest replica or, if stages are not even, a whole micro-batch on the first of the replicas.
std::vector<parallel::schedule::PieceCost> piece_costs(const MeshProblem& on,
                                                       const MeshChoice& choice);
/// Then also, by stage, each replica's time relative to the first's.
std::vector<std::vector<double>> slowness_of(const MeshProblem& on, const MeshChoice& choice);

/// The optimizer's update of each stage, by its slowest replica.
std::vector<double> updates(const MeshProblem& on, const MeshChoice& choice);

/// The seconds of exchanges among the replicas of each stage, and among stages that share
/// parameters, beside a step. Nothing hides them.
std::vector<double> exchanges(const MeshProblem& on, const MeshChoice& choice);

// Pipelines whose number of replicas differs by stage. One of a stage's replicas computes a
// micro-batch. (If numbers are equal, each replica has a pipeline of its own.)

/// By stage and replica.
using ByReplica = std::vector<std::vector<double>>;

/// Takes choice.micro_batches micro-batches of `batch` samples, dealt by `speeds`, for the samples
/// of its stages.
void deal_by_speed(const ByReplica& speeds, std::int64_t batch, MeshChoice& choice);

/// For a choice with samples: which replica computes which micro-batch.
parallel::schedule::Deal dealt(const MeshChoice& choice);

/// The step as it runs. `costs`: those of each stage's first replica; `slowness`: that of all
/// replicas relative to it. Has a list for each device, in the order of the stages.
parallel::schedule::Simulation run_dealt(const MeshChoice& choice, const ByReplica& slowness,
                                         std::span<const parallel::schedule::PieceCost> costs);

/// A micro-batch's share of a stage's time if its replicas compute as many at a time, given the
/// time of each.
double shared_seconds(std::span<const double> each);

// The problem of where to cut a pipeline's model, in the form of schedule/cut.h.

/// For a choice whose stages have devices and samples, but no units yet: each unit's time on each
/// stage, the links between stages, and the units that fit into their devices. The arguments must
/// outlive it.
parallel::schedule::CutProblem cut_problem(const MeshProblem& on, const MeshChoice& choice);

}  // namespace bimetal::plan
