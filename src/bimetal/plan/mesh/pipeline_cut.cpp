// Deals micro-batches to the devices of a pipeline's stages, and finds where its model may be cut.

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/plan/mesh/pipeline_costs.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

schedule::Deal deal_of(const ByReplica& speeds, std::int64_t batch, int micro_batches) {
  auto seconds = speeds;
  for (auto& of_stage : seconds) {
    for (auto& one : of_stage) one = one > 0 ? 1 / one : schedule::kNeverSeconds;
  }
  return {seconds, schedule::micro_batch_sizes(batch, micro_batches)};
}

}  // namespace

void deal_by_speed(const ByReplica& speeds, std::int64_t batch, MeshChoice& choice) {
  const auto deal = deal_of(speeds, batch, choice.micro_batches);
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    auto& stage = choice.stages[s];
    stage.samples.clear();
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      stage.samples.push_back(deal.samples(static_cast<int>(s), static_cast<int>(r)));
    }
  }
}

// A replica that was dealt so many samples gets as many again if they stand for its speed.
schedule::Deal dealt(const MeshChoice& choice) {
  ByReplica speeds;
  for (const auto& stage : choice.stages) {
    speeds.emplace_back(stage.samples.begin(), stage.samples.end());
  }
  const auto& first = choice.stages.front().samples;
  return deal_of(speeds, std::reduce(first.begin(), first.end()), choice.micro_batches);
}

schedule::Simulation run_dealt(const MeshChoice& choice, const ByReplica& slowness,
                               std::span<const schedule::PieceCost> costs) {
  const auto deal = dealt(choice);
  std::vector<schedule::Runs> all;
  for (int s = 0; s < deal.stages(); ++s) {
    const auto& of_stage = slowness[static_cast<std::size_t>(s)];
    for (std::size_t r = 0; r < of_stage.size(); ++r) {
      all.push_back({s, deal.actions(choice.schedule, 1, s, static_cast<int>(r)), of_stage[r]});
    }
  }
  return schedule::simulate(all, deal.stages(), costs);
}

double shared_seconds(std::span<const double> each) {
  double rate = 0;
  for (const auto one : each) rate += 1 / std::max(1e-12, one);
  return 1 / rate;
}

namespace {

struct Replica {
  int device;
  double samples;  ///< at once
};

/// The replicas of a stage. If the slowest counts, only one of those that are alike.
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

/// The seconds of each unit on that stage.
std::vector<double> seconds_of(const MeshProblem& on, const MeshChoice& choice, std::size_t stage) {
  const bool recomputed = choice.keeping.recomputed_at_once > 0;
  const auto replicas = unlike_replicas(on.cluster, choice, stage);
  std::vector<double> seconds;
  for (std::size_t u = 0; u < on.units(); ++u) {
    std::vector<double> each;
    for (const auto& [device, samples] : replicas) {
      const auto unit = passes_of(on, device, {u, u + 1}, samples, recomputed);
      each.push_back(unit.forward + unit.backward);
    }
    seconds.push_back(choice.even ? std::ranges::max(each) : shared_seconds(each));
  }
  return seconds;
}

/// Behind each unit, to the stage that comes next.
std::vector<double> sends_of(const MeshProblem& on, const MeshChoice& choice, std::size_t stage) {
  const auto& units = on.input.facts.front().units;
  std::vector<double> seconds(units.size());
  std::map<std::pair<double, double>, double> known;  // most units give as much
  for (std::size_t u = 0; u + 1 < units.size(); ++u) {
    const auto& output = units[u].output;
    const auto [place, fresh] = known.try_emplace({output.fixed, output.per_sample}, 0.0);
    if (fresh) {
      const auto [forward, backward] = crossing(on, choice, stage, u);
      place->second = forward + backward;
    }
    seconds[u] = place->second;
  }
  return seconds;
}

/// By stage; of replicas that are alike, one.
std::vector<std::vector<StageDevice>> unlike_devices(const MeshProblem& on,
                                                     const MeshChoice& choice) {
  std::vector<std::vector<StageDevice>> stages;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    auto& stage = stages.emplace_back();
    const auto& devices = choice.stages[s].devices;
    auto loads = loads_of(on, choice, s);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      StageDevice own{.facts = &on.facts_of(devices[r]),
                      .load = std::move(loads[r]),
                      .room = on.cluster.device(devices[r]).memory_bytes};
      if (std::ranges::find(stage, own) == stage.end()) stage.push_back(std::move(own));
    }
  }
  return stages;
}

}  // namespace

parallel::schedule::CutProblem cut_problem(const MeshProblem& on, const MeshChoice& choice) {
  parallel::schedule::CutProblem problem{
      .seconds = {}, .micro_batches = choice.micro_batches, .chunks = choice.chunks};
  const auto stages = choice.stages.size();
  for (std::size_t s = 0; s < stages; ++s) {
    problem.seconds.push_back(seconds_of(on, choice, s));
    if (s + 1 == stages && choice.chunks == 1) continue;
    problem.send.push_back(sends_of(on, choice, s));
  }
  problem.fitting = [devices = unlike_devices(on, choice)](std::size_t stage, std::size_t begin) {
    return fitting_ends(devices[stage], begin);
  };
  return problem;
}

}  // namespace bimetal::plan
