#pragma once
// The time and memory of a step in which every device has the whole model, or shards of it.

#include <optional>
#include <vector>

#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// One device alone, or several with balanced shares; shards (levels 1 to 3) in proportion to their
/// memory. Each computes as many samples at once as its memory has room for. Nothing where a device
/// would get no sample, unless it `may_idle`.
std::optional<MeshChoice> choose_data(const MeshProblem& on, const std::vector<int>& devices,
                                      const Keeping& keeping, bool may_idle = false);

/// Units that were measured one by one, so that all of them together take what a whole step does
/// of so many samples, so many of them at once: seconds, without an update. Nothing of what is not
/// known.
void take_whole_step(ModelFacts& facts, double step_s, double samples, double at_once);

/// Of what is in shards, the part of each of these devices: in proportion to their memory.
std::vector<double> shards_by_memory(const Cluster& cluster, const std::vector<int>& devices);

/// Seconds for each sample of a step on this device, when so many are computed at once.
double seconds_per_sample(const MeshProblem& on, int device, double at_once);

/// All devices, by what a single sample takes.
std::vector<int> fastest_first(const MeshProblem& on);

}  // namespace bimetal::plan
