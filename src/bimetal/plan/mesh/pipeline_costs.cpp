#include "bimetal/plan/mesh/pipeline_costs.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "bimetal/plan/mesh/mesh_search.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr double kGathers = 1;  // of a step: level 3 then has all of a stage's parameters

/// The bytes of the output of unit `last` for so many samples, between these two devices.
double crossing_bytes(const MeshProblem& on, int from, int to, std::size_t last, double samples) {
  const double bytes = on.facts_of(from).units[last].output.at(samples);
  const auto& activations = on.input.activations;
  const bool whole = !activations.within_hosts && on.cluster.same_host(from, to);
  return whole ? bytes : activations.sent * bytes;
}

const MeshStage& next_stage(const MeshChoice& choice, std::size_t stage) {
  return choice.stages[(stage + 1) % choice.stages.size()];
}

/// One micro-batch goes from one replica to another, each to each some time: the slowest pair
/// counts.
std::pair<double, double> one_crossing(const MeshProblem& on, const MeshChoice& choice,
                                       std::size_t stage, std::size_t last) {
  std::pair<double, double> slowest;
  for (const int sender : choice.stages[stage].devices) {
    const std::vector<int> from = {sender};
    for (const int receiver : next_stage(choice, stage).devices) {
      const std::vector<int> to = {receiver};
      const std::vector<double> bytes = {
          crossing_bytes(on, sender, receiver, last, at_once(choice, stage, 0))};
      slowest.first = std::max(slowest.first, on.cluster.send_seconds(from, to, bytes));
      slowest.second = std::max(slowest.second, on.cluster.send_seconds(to, from, bytes));
    }
  }
  return slowest;
}

/// Replicas sum their gradients. From level 2 on they go half of that way, to who keeps them, for
/// each micro-batch, and parameters the other half: at level 3 before a step, as they are gathered.
double replicas_exchange(const Cluster& cluster, const ModelFacts& facts, const MeshChoice& choice,
                         const MeshStage& stage) {
  const auto seconds_of = [&](const Keeping& keeping) {
    double bytes = 0;
    for (const auto& [begin, end] : stage.pieces) {
      bytes += gathered_bytes(facts, keeping, std::span(facts.units).subspan(begin, end - begin));
    }
    return cluster.all_reduce_seconds(stage.devices, bytes);
  };
  const double summed = seconds_of({});
  if (choice.keeping.level < 2) return summed;
  const double of_replica = choice.even ? 1 : 1 / static_cast<double>(stage.devices.size());
  // Below level 3 stages keep whole parameters in their own type.
  const double gathered = choice.keeping.level < 3 ? summed : seconds_of(choice.keeping);
  return (std::max(1.0, of_replica * choice.micro_batches) * summed + gathered) / 2;
}

/// A tensor that units of the first and the last stage use is summed between these: each part of it
/// by those of one pipeline that have it, or, if stages are not alike, all of it by all of them, in
/// a ring that is as fast as the link between two.
double tied_exchange(const MeshProblem& on, const MeshChoice& choice) {
  const auto& first = choice.stages.front().devices;
  const auto& last = choice.stages.back().devices;
  const std::vector<int> ends = {first.front(), last.front()};
  const auto& facts = on.facts_of(ends.front());
  const int parts = on.cluster.device(ends.front()).parts;
  const bool by_part = choice.even && parts == on.cluster.device(ends.back()).parts;
  double elements = static_cast<double>(facts.shared());
  if (!by_part) {
    double members = 0;
    for (const auto* const stage : {&first, &last}) {
      for (const int device : *stage) members += on.cluster.device(device).parts;
    }
    elements = static_cast<double>(std::max(facts.shared(), facts.shared_whole));
    elements *= 2 * (members - 1) / members;
  }
  return elements > 0 ? on.cluster.all_reduce_seconds(ends, elements * facts.element_bytes) : 0;
}

/// The cost of a micro-batch in one of a stage's pieces.
schedule::PieceCost computing_cost(const MeshProblem& on, const MeshChoice& choice,
                                   std::size_t stage, const UnitRange& piece) {
  const bool recomputed = choice.keeping.recomputed_at_once > 0;
  const bool split = choice.schedule == schedule::Kind::zero_bubble;
  const auto& devices = choice.stages[stage].devices;
  schedule::PieceCost cost{.forward = 0, .backward_input = 0, .backward_weight = 0};
  const std::size_t count = choice.even ? devices.size() : 1;
  for (std::size_t r = 0; r < count; ++r) {
    const auto passes = passes_of(on, devices[r], piece, at_once(choice, stage, r), recomputed);
    cost.forward = std::max(cost.forward, passes.forward);
    const auto& facts = on.facts_of(devices[r]);
    const double inputs = split ? facts.split_inputs : 0.5;
    const double weights = split ? facts.split_weights : 0.5;
    cost.backward_input = std::max(cost.backward_input, inputs * passes.backward);
    cost.backward_weight = std::max(cost.backward_weight, weights * passes.backward);
  }
  return cost;
}

}  // namespace

Passes passes_of(const MeshProblem& on, int device, const UnitRange& units, double samples,
                 bool recomputed) {
  const auto& all = on.facts_of(device).units;
  Passes passes;
  for (std::size_t u = units.begin; u < units.end; ++u) {
    const double forward = all[u].forward_s.at(samples);
    passes.forward += forward;
    passes.backward += all[u].backward_s.at(samples) + (recomputed ? forward : 0);
  }
  const double slower = on.cluster.device(device).slower;
  return {passes.forward * slower, passes.backward * slower};
}

Passes passes_of(const MeshProblem& on, int device, const MeshStage& stage, double samples,
                 bool recomputed) {
  Passes all;
  for (const auto& piece : stage.pieces) {
    const auto passes = passes_of(on, device, piece, samples, recomputed);
    all.forward += passes.forward;
    all.backward += passes.backward;
  }
  return all;
}

double at_once(const MeshChoice& choice, std::size_t stage, std::size_t replica) {
  const auto& of_stage = choice.stages[stage].samples;
  const auto samples =
      choice.even ? of_stage[replica] : std::reduce(of_stage.begin(), of_stage.end());
  return samples == 0 ? 0 : std::max(1.0, static_cast<double>(samples) / choice.micro_batches);
}

StageLoad load_of(const MeshInput& input, const MeshChoice& choice, std::size_t stage,
                  std::size_t replica, double shard) {
  const schedule::Shape shape{.stages = static_cast<int>(choice.stages.size()),
                              .micro_batches = choice.micro_batches,
                              .chunks = choice.chunks};
  const auto own = static_cast<int>(stage);
  return {.replicas = static_cast<double>(choice.stages[stage].devices.size()),
          .shard = shard,
          .at_once = at_once(choice, stage, replica),
          .in_flight = choice.even ? in_flight(choice.schedule, own, shape)
                                   : dealt(choice).in_flight(choice.schedule, own,
                                                             static_cast<int>(replica)),
          .keeping = choice.keeping,
          .bucket_bytes = input.bucket_mb * double(1 << 20)};
}

std::vector<StageLoad> loads_of(const MeshProblem& on, const MeshChoice& choice,
                                std::size_t stage) {
  std::vector<StageLoad> loads;
  for (const double shard : shards_by_memory(on.cluster, choice.stages[stage].devices)) {
    const auto replica = loads.size();
    if (loads.empty() || !choice.even) {
      loads.push_back(load_of(on.input, choice, stage, replica, shard));
      continue;
    }
    // Each has a pipeline of its own, which goes through the same schedule.
    loads.push_back(loads.front());
    loads.back().shard = shard;
    loads.back().at_once = at_once(choice, stage, replica);
  }
  return loads;
}

std::pair<double, double> crossing(const MeshProblem& on, const MeshChoice& choice,
                                   std::size_t stage, std::size_t last) {
  if (!choice.even) return one_crossing(on, choice, stage, last);
  const auto& from = choice.stages[stage];
  const auto& to = next_stage(choice, stage);
  std::vector<int> senders, receivers;
  std::vector<double> bytes;
  for (std::size_t i = 0; i < from.devices.size(); ++i) {
    senders.push_back(from.devices[i]);
    receivers.push_back(to.devices[i]);
    bytes.push_back(
        crossing_bytes(on, senders.back(), receivers.back(), last, at_once(choice, stage, i)));
  }
  return {on.cluster.send_seconds(senders, receivers, bytes),
          on.cluster.send_seconds(receivers, senders, bytes)};
}

std::vector<schedule::PieceCost> piece_costs(const MeshProblem& on, const MeshChoice& choice) {
  std::vector<schedule::PieceCost> costs;
  for (std::size_t chunk = 0; chunk < static_cast<std::size_t>(choice.chunks); ++chunk) {
    for (std::size_t s = 0; s < choice.stages.size(); ++s) {
      costs.push_back(computing_cost(on, choice, s, choice.stages[s].pieces[chunk]));
    }
  }
  for (std::size_t p = 0; p + 1 < costs.size(); ++p) {
    const auto stages = choice.stages.size();
    const auto last = choice.stages[p % stages].pieces[p / stages].end - 1;
    const auto [forward, backward] = crossing(on, choice, p % stages, last);
    costs[p].send_forward = forward;
    costs[p + 1].send_backward = backward;
  }
  return costs;
}

std::vector<std::vector<double>> slowness_of(const MeshProblem& on, const MeshChoice& choice) {
  std::vector<std::vector<double>> slowness;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    auto& of_stage = slowness.emplace_back();
    for (const int device : stage.devices) {
      const auto passes = passes_of(on, device, stage, at_once(choice, s, 0),
                                    choice.keeping.recomputed_at_once > 0);
      of_stage.push_back(std::max(1e-12, passes.forward + passes.backward));
    }
    const double first = of_stage.front();
    for (auto& one : of_stage) one /= first;
  }
  return slowness;
}

std::vector<double> updates(const MeshProblem& on, const MeshChoice& choice) {
  std::vector<double> seconds;
  for (const auto& stage : choice.stages) {
    const auto shards = shards_by_memory(on.cluster, stage.devices);
    double slowest = 0;
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      const auto& facts = on.facts_of(stage.devices[r]);
      // The last stage also has, and updates, the parameters that it shares with earlier ones.
      double elements = tied_elements(facts, stage.pieces);
      for (const auto& [begin, end] : stage.pieces) {
        for (auto u = begin; u < end; ++u) {
          elements += static_cast<double>(facts.units[u].elements());
        }
      }
      const double kept = choice.keeping.level > 0 ? shards[r] : 1;
      const double slower = on.cluster.device(stage.devices[r]).slower;
      const double moved = disk_seconds(facts, choice.keeping, 1, kGathers);
      slowest = std::max(slowest, kept * elements * (facts.update_s * slower + moved));
    }
    seconds.push_back(slowest);
  }
  return seconds;
}

std::vector<double> exchanges(const MeshProblem& on, const MeshChoice& choice) {
  std::vector<double> seconds;
  for (const auto& stage : choice.stages) {
    const auto& facts = on.facts_of(stage.devices.front());
    seconds.push_back(replicas_exchange(on.cluster, facts, choice, stage));
  }
  if (choice.stages.size() < 2) return seconds;
  const double tied = tied_exchange(on, choice);
  seconds.front() += tied;
  seconds.back() += tied;
  return seconds;
}

}  // namespace bimetal::plan
