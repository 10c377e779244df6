#include "bimetal/plan/mesh/pipeline_cut.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/plan/mesh/dealt.h"
#include "bimetal/plan/mesh/pipeline_costs.h"

namespace bimetal::plan {
namespace {

struct Replica {
  int device;
  double samples;  ///< at once
};

/// Of a stage; where the slowest counts, of those that are alike one.
std::vector<Replica> unlike_replicas(const Cluster& cluster, const MeshChoice& choice,
                                     std::size_t stage) {
  const auto& devices = choice.stages[stage].devices;
  std::vector<Replica> found;
  std::set<std::tuple<std::size_t, double, double>> known;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const Replica own{devices[r], at_once(choice, stage, r)};
    const auto& device = cluster.device(own.device);
    const bool fresh = known.emplace(device.facts, device.slower, own.samples).second;
    if (fresh || !choice.even) found.push_back(own);
  }
  return found;
}

/// Of each unit on that stage.
std::vector<double> seconds_of(const MeshInput& input, const Cluster& cluster,
                               const MeshChoice& choice, std::size_t stage) {
  const bool recomputed = choice.keeping.recomputed_at_once > 0;
  const auto replicas = unlike_replicas(cluster, choice, stage);
  std::vector<double> seconds;
  for (std::size_t u = 0; u < input.facts.front().units.size(); ++u) {
    std::vector<double> each;
    for (const auto& [device, samples] : replicas) {
      const auto unit = passes_of(input, cluster, device, {u, u + 1}, samples, recomputed);
      each.push_back(unit.forward + unit.backward);
    }
    seconds.push_back(choice.even ? std::ranges::max(each) : shared_seconds(each));
  }
  return seconds;
}

/// Behind each unit, to the stage that comes next.
std::vector<double> sends_of(const MeshInput& input, const Cluster& cluster,
                             const MeshChoice& choice, std::size_t stage) {
  const auto& units = input.facts.front().units;
  std::vector<double> seconds(units.size());
  std::map<std::pair<double, double>, double> known;  // most units give as much
  for (std::size_t u = 0; u + 1 < units.size(); ++u) {
    const auto& output = units[u].output;
    const auto [place, fresh] = known.try_emplace({output.fixed, output.per_sample}, 0.0);
    if (fresh) {
      const auto [forward, backward] = crossing(input, cluster, choice, stage, u);
      place->second = forward + backward;
    }
    seconds[u] = place->second;
  }
  return seconds;
}

/// By stage; of replicas that are alike, one.
std::vector<std::vector<StageDevice>> unlike_devices(const MeshInput& input, const Cluster& cluster,
                                                     const MeshChoice& choice) {
  std::vector<std::vector<StageDevice>> stages;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    auto& stage = stages.emplace_back();
    const auto& devices = choice.stages[s].devices;
    auto loads = loads_of(input, cluster, choice, s);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      StageDevice own{.facts = &facts_of(input, cluster, devices[r]),
                      .load = std::move(loads[r]),
                      .room = cluster.device(devices[r]).memory_bytes};
      if (std::ranges::find(stage, own) == stage.end()) stage.push_back(std::move(own));
    }
  }
  return stages;
}

}  // namespace

parallel::schedule::CutProblem cut_problem(const MeshInput& input, const Cluster& cluster,
                                           const MeshChoice& choice) {
  parallel::schedule::CutProblem problem{
      .seconds = {}, .micro_batches = choice.micro_batches, .chunks = choice.chunks};
  const auto stages = choice.stages.size();
  for (std::size_t s = 0; s < stages; ++s) {
    problem.seconds.push_back(seconds_of(input, cluster, choice, s));
    if (s + 1 == stages && choice.chunks == 1) continue;
    problem.send.push_back(sends_of(input, cluster, choice, s));
  }
  problem.fitting = [devices = unlike_devices(input, cluster, choice)](std::size_t stage,
                                                                       std::size_t begin) {
    return fitting_ends(devices[stage], begin);
  };
  return problem;
}

}  // namespace bimetal::plan
