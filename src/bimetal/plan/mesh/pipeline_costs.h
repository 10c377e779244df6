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
/// Of all pieces of a stage.
Passes passes_of(const MeshProblem& on, int device, const MeshStage& stage, double samples,
                 bool recomputed);

/// Samples of a micro-batch that a replica computes, of those that it has at all, one at least; all
/// where stages are not even.
double at_once(const MeshChoice& choice, std::size_t stage, std::size_t replica);

/// What a replica has of its stage that is no unit's own.
StageLoad load_of(const MeshInput& input, const MeshChoice& choice, std::size_t stage,
                  std::size_t replica, double shard);

/// Of all replicas of a stage, with shards by memory.
std::vector<StageLoad> loads_of(const MeshProblem& on, const MeshChoice& choice, std::size_t stage);

/// Seconds in which what unit `last` gives crosses from a stage to the next, from the last one to
/// the first, and its gradient back.
std::pair<double, double> crossing(const MeshProblem& on, const MeshChoice& choice,
                                   std::size_t stage, std::size_t last);

/// What each piece costs for a micro-batch, in the model's order: its stage's slowest replica's
/// part, or, where stages are not even, the whole of one on the first of the replicas.
std::vector<parallel::schedule::PieceCost> piece_costs(const MeshProblem& on,
                                                       const MeshChoice& choice);
/// Then also, by stage, what each replica takes in terms of the first.
std::vector<std::vector<double>> slowness_of(const MeshProblem& on, const MeshChoice& choice);

/// The optimizer's update of each stage, by its slowest replica.
std::vector<double> updates(const MeshProblem& on, const MeshChoice& choice);

/// What the replicas of each stage, and the stages that share parameters, exchange beside a step;
/// nothing hides it.
std::vector<double> exchanges(const MeshProblem& on, const MeshChoice& choice);

// Pipelines whose number of replicas differs by stage. One of a stage's replicas computes a
// micro-batch. (If numbers are equal, each replica has a pipeline of its own.)

/// By stage, of each of its replicas.
using ByReplica = std::vector<std::vector<double>>;

/// Takes choice.micro_batches micro-batches of `batch` samples, dealt by `speeds`, for the samples
/// of its stages.
void deal_by_speed(const ByReplica& speeds, std::int64_t batch, MeshChoice& choice);

/// Of a choice with samples: who computes which micro-batch.
parallel::schedule::Deal dealt(const MeshChoice& choice);

/// As it runs; `costs`: of each stage's first replica, `slowness`: of all in terms of it. Has a
/// list for each device, in the order of the stages.
parallel::schedule::Simulation run_dealt(const MeshChoice& choice, const ByReplica& slowness,
                                         std::span<const parallel::schedule::PieceCost> costs);

/// What a micro-batch takes of a stage's time if its replicas compute as many at a time, by what
/// each takes.
double shared_seconds(std::span<const double> each);

// Where a pipeline's model may be cut, in the form of schedule/cut.h.

/// Of a choice whose stages have devices and samples, but no units yet: what each unit takes on
/// each stage, what lies between these, and what fits into their devices. What it is made of must
/// outlive it.
parallel::schedule::CutProblem cut_problem(const MeshProblem& on, const MeshChoice& choice);

}  // namespace bimetal::plan
