#pragma once
// Pipelines whose number of replicas differs by stage. One of a stage's replicas computes a
// micro-batch. (If numbers are equal, each replica has a pipeline of its own.)

#include <span>
#include <vector>

#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/parallel/schedule/simulate.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

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

}  // namespace bimetal::plan
