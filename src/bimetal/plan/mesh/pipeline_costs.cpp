#include "bimetal/plan/mesh/pipeline_costs.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/dealt.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr double kGathers = 1;  // of a step: level 3 then has all of a stage's parameters

/// Of what unit `last` gives of so many samples, between these two.
double crossing_bytes(const MeshInput& input, const Cluster& cluster, int from, int to,
                      std::size_t last, double samples) {
  const double bytes = facts_of(input, cluster, from).units[last].output.at(samples);
  const auto& activations = input.activations;
  const bool whole = !activations.within_hosts && cluster.same_host(from, to);
  return whole ? bytes : activations.sent * bytes;
}

/// One micro-batch goes from one replica to another, each to each some time: the slowest pair
/// counts.
std::pair<double, double> one_crossing(const MeshInput& input, const Cluster& cluster,
                                       const MeshChoice& choice, std::size_t stage,
                                       std::size_t last) {
  std::pair<double, double> slowest;
  for (const int sender : choice.stages[stage].devices) {
    const std::vector<int> from = {sender};
    for (const int receiver : choice.stages[stage + 1].devices) {
      const std::vector<int> to = {receiver};
      const std::vector<double> bytes = {
          crossing_bytes(input, cluster, sender, receiver, last, at_once(choice, stage, 0))};
      slowest.first = std::max(slowest.first, cluster.send_seconds(from, to, bytes));
      slowest.second = std::max(slowest.second, cluster.send_seconds(to, from, bytes));
    }
  }
  return slowest;
}

/// Replicas sum their gradients. From level 2 on they go half of that way, to who keeps them, for
/// each micro-batch, and parameters the other half: at level 3 before a step, as they are gathered.
double replicas_exchange(const Cluster& cluster, const ModelFacts& facts, const MeshChoice& choice,
                         const MeshStage& stage) {
  const auto units = std::span(facts.units).subspan(stage.begin, stage.end - stage.begin);
  const auto seconds_of = [&](const Keeping& keeping) {
    return cluster.all_reduce_seconds(stage.devices, gathered_bytes(facts, keeping, units));
  };
  const double summed = seconds_of({});
  if (choice.keeping.level < 2) return summed;
  const double of_replica = choice.even() ? 1 : 1 / static_cast<double>(stage.devices.size());
  // Below level 3 stages keep what is whole in its own type.
  const double gathered = choice.keeping.level < 3 ? summed : seconds_of(choice.keeping);
  return (std::max(1.0, of_replica * choice.micro_batches) * summed + gathered) / 2;
}

}  // namespace

const ModelFacts& facts_of(const MeshInput& input, const Cluster& cluster, int device) {
  return input.facts[cluster.device(device).facts];
}

Passes passes_of(const MeshInput& input, const Cluster& cluster, int device, std::size_t begin,
                 std::size_t end, double samples, bool recomputed) {
  const auto& units = facts_of(input, cluster, device).units;
  Passes passes;
  for (std::size_t u = begin; u < end; ++u) {
    const double forward = units[u].forward_s.at(samples);
    passes.forward += forward;
    passes.backward += units[u].backward_s.at(samples) + (recomputed ? forward : 0);
  }
  const double slower = cluster.device(device).slower;
  return {passes.forward * slower, passes.backward * slower};
}

double at_once(const MeshChoice& choice, std::size_t stage, std::size_t replica) {
  const auto& of_stage = choice.stages[stage].samples;
  const auto samples =
      choice.even() ? of_stage[replica] : std::reduce(of_stage.begin(), of_stage.end());
  return samples == 0 ? 0 : std::max(1.0, static_cast<double>(samples) / choice.micro_batches);
}

StageLoad load_of(const MeshInput& input, const MeshChoice& choice, std::size_t stage,
                  std::size_t replica, double shard) {
  const auto stages = choice.stages.size();
  const bool even = choice.even();
  return {.replicas = static_cast<double>(choice.stages[stage].devices.size()),
          .shard = shard,
          .at_once = at_once(choice, stage, replica),
          .in_flight = even ? in_flight(choice.schedule, stage, stages, choice.micro_batches)
                            : dealt(choice).in_flight(choice.schedule, static_cast<int>(stage),
                                                      static_cast<int>(replica)),
          .keeping = choice.keeping,
          .bucket_bytes = input.bucket_mb * double(1 << 20)};
}

std::pair<double, double> crossing(const MeshInput& input, const Cluster& cluster,
                                   const MeshChoice& choice, std::size_t stage, std::size_t last) {
  if (!choice.even()) return one_crossing(input, cluster, choice, stage, last);
  const auto& from = choice.stages[stage];
  const auto& to = choice.stages[stage + 1];
  std::vector<int> senders, receivers;
  std::vector<double> bytes;
  for (std::size_t i = 0; i < from.devices.size(); ++i) {
    senders.push_back(from.devices[i]);
    receivers.push_back(to.devices[i]);
    bytes.push_back(crossing_bytes(input, cluster, senders.back(), receivers.back(), last,
                                   at_once(choice, stage, i)));
  }
  return {cluster.send_seconds(senders, receivers, bytes),
          cluster.send_seconds(receivers, senders, bytes)};
}

std::vector<schedule::PieceCost> stage_costs(const MeshInput& input, const Cluster& cluster,
                                             const MeshChoice& choice) {
  std::vector<schedule::PieceCost> costs;
  const bool recomputed = choice.keeping.recomputed_at_once > 0;
  const bool split = choice.schedule == schedule::Kind::zero_bubble;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    schedule::PieceCost cost{.forward = 0, .backward_input = 0, .backward_weight = 0};
    const std::size_t count = choice.even() ? stage.devices.size() : 1;
    for (std::size_t r = 0; r < count; ++r) {
      const auto passes = passes_of(input, cluster, stage.devices[r], stage.begin, stage.end,
                                    at_once(choice, s, r), recomputed);
      cost.forward = std::max(cost.forward, passes.forward);
      const auto& facts = facts_of(input, cluster, stage.devices[r]);
      const double inputs = split ? facts.split_inputs : 0.5;
      const double weights = split ? facts.split_weights : 0.5;
      cost.backward_input = std::max(cost.backward_input, inputs * passes.backward);
      cost.backward_weight = std::max(cost.backward_weight, weights * passes.backward);
    }
    if (s + 1 < choice.stages.size()) {
      cost.send_forward = crossing(input, cluster, choice, s, stage.end - 1).first;
    }
    if (s > 0) {
      const auto before = choice.stages[s - 1].end - 1;
      cost.send_backward = crossing(input, cluster, choice, s - 1, before).second;
    }
    costs.push_back(cost);
  }
  return costs;
}

std::vector<std::vector<double>> slowness_of(const MeshInput& input, const Cluster& cluster,
                                             const MeshChoice& choice) {
  std::vector<std::vector<double>> slowness;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    auto& of_stage = slowness.emplace_back();
    for (const int device : stage.devices) {
      const auto passes = passes_of(input, cluster, device, stage.begin, stage.end,
                                    at_once(choice, s, 0), choice.keeping.recomputed_at_once > 0);
      of_stage.push_back(std::max(1e-12, passes.forward + passes.backward));
    }
    const double first = of_stage.front();
    for (auto& one : of_stage) one /= first;
  }
  return slowness;
}

std::vector<double> updates(const MeshInput& input, const Cluster& cluster,
                            const MeshChoice& choice) {
  std::vector<double> seconds;
  for (const auto& stage : choice.stages) {
    const auto shards = shards_by_memory(cluster, stage.devices);
    double slowest = 0;
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      const auto& facts = facts_of(input, cluster, stage.devices[r]);
      double elements = 0;
      for (std::size_t u = stage.begin; u < stage.end; ++u) {
        elements += static_cast<double>(facts.units[u].elements());
      }
      // What the last stage shares with those before, it has and updates, too.
      for (std::size_t u = 0; u < stage.begin && &stage == &choice.stages.back(); ++u) {
        elements += static_cast<double>(facts.units[u].shared);
      }
      const double kept = choice.keeping.level > 0 ? shards[r] : 1;
      const double slower = cluster.device(stage.devices[r]).slower;
      const double moved = disk_seconds(facts, choice.keeping, 1, kGathers);
      slowest = std::max(slowest, kept * elements * (facts.update_s * slower + moved));
    }
    seconds.push_back(slowest);
  }
  return seconds;
}

std::vector<double> exchanges(const MeshInput& input, const Cluster& cluster,
                              const MeshChoice& choice) {
  std::vector<double> seconds;
  for (const auto& stage : choice.stages) {
    const auto& facts = facts_of(input, cluster, stage.devices.front());
    seconds.push_back(replicas_exchange(cluster, facts, choice, stage));
  }
  // A tensor that several units use is summed between the first and the last stage.
  const auto& facts = input.facts.front();
  double shared = 0;
  for (const auto& unit : facts.units) shared += static_cast<double>(unit.shared);
  if (shared > 0 && choice.stages.size() > 1) {
    const std::vector<int> ends = {choice.stages.front().devices.front(),
                                   choice.stages.back().devices.front()};
    const double tied = cluster.all_reduce_seconds(ends, shared * facts.element_bytes);
    seconds.front() += tied;
    seconds.back() += tied;
  }
  return seconds;
}

}  // namespace bimetal::plan
