#include "bimetal/plan/mesh/tensor_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"

namespace bimetal::plan {
namespace {

constexpr double kAlike = 1.1;  // parts of devices that differ by less are equal

/// In terms of the least, as a job file is to name them.
std::vector<double> unless_alike(std::vector<double> weights) {
  const auto [least, most] = std::ranges::minmax(weights);
  const bool alike = !std::isfinite(most) || most <= kAlike * least;
  for (auto& weight : weights) weight = alike ? 1 : std::round(100 * weight / least) / 100;
  return weights;
}

void slow_to(Linear& line, const Linear& other, double factor) {
  line.fixed = std::max(line.fixed, factor * other.fixed);
  line.per_sample = std::max(line.per_sample, factor * other.per_sample);
}

/// The memory before there is a cut: parameters with all that belongs to them, and one sample's
/// activations.
double filling(const ModelFacts& facts) {
  double bytes =
      static_cast<double>(facts.elements()) * (2.0 * facts.element_bytes + facts.state_bytes);
  for (const auto& unit : facts.units) bytes += unit.saved.at(1);
  return bytes;
}

/// An all-reduce over these devices, as a line through none and some bytes.
Linear all_reduce_of(const Cluster& cluster, const std::vector<int>& group) {
  constexpr double kSome = 1 << 20;
  const double none = cluster.all_reduce_seconds(group, 0);
  return {none, (cluster.all_reduce_seconds(group, kSome) - none) / kSome};
}

Linear sum_seconds(const Linear& each, double sums, const Linear& bytes) {
  return {sums * each.fixed + bytes.fixed * each.per_sample, bytes.per_sample * each.per_sample};
}

Linear both(const Linear& a, const Linear& b) {
  return {a.fixed + b.fixed, a.per_sample + b.per_sample};
}

/// Micro-batches of a replica.
double computed(const MeshChoice& choice, std::size_t stage, std::size_t replica) {
  if (choice.even) return choice.micro_batches;
  const auto& samples = choice.stages[stage].samples;
  const auto all = static_cast<double>(std::reduce(samples.begin(), samples.end()));
  return choice.micro_batches * static_cast<double>(samples[replica]) / all;
}

}  // namespace

std::vector<double> parts_by_speed(const MeshProblem& on, const Groups& groups) {
  std::vector<double> weights(groups.front().size());
  for (const auto& group : groups) {
    for (std::size_t part = 0; part < group.size(); ++part) {
      weights[part] += 1 / seconds_per_sample(on, group[part], 1);
    }
  }
  return unless_alike(std::move(weights));
}

std::vector<double> parts_by_memory(const Cluster& cluster, const Groups& groups) {
  std::vector<double> weights(groups.front().size(), std::numeric_limits<double>::infinity());
  for (const auto& group : groups) {
    for (std::size_t part = 0; part < group.size(); ++part) {
      weights[part] = std::min(weights[part], cluster.device(group[part]).memory_bytes);
    }
  }
  return unless_alike(std::move(weights));
}

std::vector<TensorGroup> with_weights(const Groups& groups, const std::vector<double>& weights,
                                      const std::vector<int>& whole) {
  std::vector<TensorGroup> all;
  for (const auto& group : groups) all.push_back({group, weights});
  for (const int device : whole) all.push_back({{device}, {1}});
  return all;
}

std::pair<std::vector<TensorGroup>, MeshChoice> groups_of(MeshChoice choice) {
  std::vector<TensorGroup> groups;
  for (auto& stage : choice.stages) {
    std::vector<int> numbers;
    for (std::size_t i = 0; i < stage.devices.size(); ++i) {
      if (i % stage.parts() == 0) {
        numbers.push_back(static_cast<int>(groups.size()));
        groups.push_back({.devices = {}, .weights = stage.part_weights});
      }
      groups.back().devices.push_back(stage.devices[i]);
    }
    stage.devices = std::move(numbers);
    stage.part_weights = {1};
  }
  return {std::move(groups), std::move(choice)};
}

TensorGroups::TensorGroups(const MeshProblem& on, std::vector<TensorGroup> groups)
    : on_(on), groups_(std::move(groups)) {
  std::vector<MeshDevice> devices;
  for (const auto& group : groups_) {
    const auto kind = kind_of(group);
    const auto& scarcest = on.cluster.device(group.devices[kinds_[kind].scarcest]);
    devices.push_back(
        {.name = scarcest.name,
         .host = on.cluster.device(group.devices.front()).host,
         .memory_bytes = scarcest.memory_bytes,
         .facts = kind,
         .is_host = std::ranges::any_of(
             group.devices, [&](int member) { return on.cluster.device(member).is_host; }),
         .parts = static_cast<int>(group.devices.size())});
  }
  for (auto* const all : {&grouped_, &sums_}) {
    auto facts = std::move(all->facts);
    *all = {.facts = std::move(facts),
            .global_batch = on.input.global_batch,
            .micro_batch = on.input.micro_batch,
            .bucket_mb = on.input.bucket_mb,
            .activations = on.input.activations,
            .uneven = false,
            .parts = false,
            .evaluates = on.input.evaluates};
  }
  of_groups_.emplace(std::move(devices), network());
}

std::size_t TensorGroups::kind_of(const TensorGroup& group) {
  Key key;
  for (std::size_t part = 0; part < group.devices.size(); ++part) {
    const auto& device = on_.cluster.device(group.devices[part]);
    key.emplace_back(device.facts, device.slower, device.memory_bytes, group.weights[part]);
  }
  const auto each = all_reduce_of(on_.cluster, group.devices);
  key.emplace_back(0, each.fixed, each.per_sample, 0);
  const auto [place, fresh] = known_.emplace(std::move(key), kinds_.size());
  if (fresh) add_kind(group);
  return place->second;
}

void TensorGroups::add_kind(const TensorGroup& group) {
  const auto& devices = group.devices;
  auto& kind = kinds_.emplace_back();
  std::pair<double, double> fullest;
  for (std::size_t part = 0; part < devices.size(); ++part) {
    const auto& whole = on_.facts_of(devices[part]);
    const auto& own = kind.parts.emplace_back(facts_in_parts(whole, group.weights, part));
    const double bytes = filling(own);
    const std::pair filled(bytes / on_.cluster.device(devices[part]).memory_bytes, bytes);
    if (filled <= fullest) continue;
    fullest = filled;
    kind.scarcest = part;
  }
  auto facts = kind.parts[kind.scarcest];
  double update = 0;  // of the slowest with its part
  for (std::size_t part = 0; part < devices.size(); ++part) {
    const auto& own = kind.parts[part];
    update = std::max(update, own.update_s * static_cast<double>(own.elements()) *
                                  on_.cluster.device(devices[part]).slower);
  }
  facts.update_s = update / static_cast<double>(std::max<std::int64_t>(1, facts.elements()));
  auto sums = facts;
  const auto each = all_reduce_of(on_.cluster, devices);
  for (std::size_t u = 0; u < facts.units.size(); ++u) {
    auto& unit = facts.units[u];
    unit.forward_s = unit.backward_s = {};
    for (std::size_t part = 0; part < devices.size(); ++part) {
      const double slower = on_.cluster.device(devices[part]).slower;
      slow_to(unit.forward_s, kind.parts[part].units[u].forward_s, slower);
      slow_to(unit.backward_s, kind.parts[part].units[u].backward_s, slower);
    }
    const auto& parts = unit.in_parts;
    sums.units[u].forward_s = sum_seconds(each, parts.forward_sums, parts.forward_summed_bytes);
    sums.units[u].backward_s = sum_seconds(each, parts.backward_sums, parts.backward_summed_bytes);
    unit.forward_s = both(unit.forward_s, sums.units[u].forward_s);
    unit.backward_s = both(unit.backward_s, sums.units[u].backward_s);
  }
  grouped_.facts.push_back(std::move(facts));
  sums_.facts.push_back(std::move(sums));
}

/// All parts of a message leave a host at a time.
Network TensorGroups::network() const {
  const auto& first = groups_.front().devices;
  const bool alike = std::ranges::all_of(groups_, [&](const TensorGroup& group) {
    return in_one_host(on_.cluster, group.devices) && group.devices.size() == first.size();
  });
  auto network = on_.cluster.network();
  for (auto& host : network.hosts) host.uplink.bytes_per_s /= static_cast<double>(first.size());
  if (!network.pairs.empty() || !alike) network.pairs = pairs();
  return network;
}

std::vector<LinkSpeed> TensorGroups::pairs() const {
  std::vector<LinkSpeed> all;
  for (const auto& from : groups_) {
    for (const auto& to : groups_) {
      all.push_back(&from == &to ? LinkSpeed() : between(from.devices, to.devices));
    }
  }
  return all;
}

/// Each member gets data from the member with the same part or, if there are fewer, the part modulo
/// their number. Data between the same two hosts shares the way.
LinkSpeed TensorGroups::between(const std::vector<int>& from, const std::vector<int>& to) const {
  LinkSpeed slowest{0, std::numeric_limits<double>::infinity()};
  const auto sender = [&](std::size_t part) { return from[part % from.size()]; };
  for (std::size_t part = 0; part < to.size(); ++part) {
    int beside = 0;
    for (std::size_t other = 0; other < to.size(); ++other) {
      beside += on_.cluster.same_host(sender(part), sender(other)) &&
                on_.cluster.same_host(to[part], to[other]);
    }
    if (on_.cluster.same_host(sender(part), to[part])) beside = 1;
    const auto link = on_.cluster.link(sender(part), to[part]);
    slowest.latency_s = std::max(slowest.latency_s, link.latency_s);
    slowest.bytes_per_s = std::min(slowest.bytes_per_s, link.bytes_per_s / beside);
  }
  return slowest;
}

MeshChoice TensorGroups::expanded(MeshChoice choice) const {
  take_sums(choice);
  const auto needed = needed_by_members(choice);
  for (auto& stage : choice.stages) {
    std::vector<int> devices;
    for (const int number : stage.devices) {
      const auto& members = group(number).devices;
      devices.insert(devices.end(), members.begin(), members.end());
      stage.part_weights = group(number).weights;
    }
    stage.devices = std::move(devices);
  }
  if (choice.scheme != Scheme::Pipeline) choice.scheme = Scheme::Tensor;
  choice.take_peaks(on_.cluster, needed);
  return choice;
}

/// Takes the sums of the groups of a choice that is not yet expanded.
void TensorGroups::take_sums(MeshChoice& choice) const {
  const bool recomputed = choice.keeping.recomputed_at_once > 0;
  choice.sums_bytes_per_s = std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      const auto passes = passes_of({sums_, *of_groups_}, stage.devices[r], stage,
                                    at_once(choice, s, r), recomputed);
      choice.summed_s =
          std::max(choice.summed_s, computed(choice, s, r) * (passes.forward + passes.backward));
      const auto& members = group(stage.devices[r]).devices;
      for (const int from : members) {
        for (const int to : members) {
          if (from == to) continue;
          choice.sums_bytes_per_s =
              std::min(choice.sums_bytes_per_s, on_.cluster.link(from, to).bytes_per_s);
        }
      }
    }
  }
}

/// The members with a part keep its shards: by part, for each group of the stage.
std::vector<std::vector<double>> TensorGroups::shards_of(const MeshStage& stage) const {
  std::vector<std::vector<double>> shards;
  for (std::size_t part = 0; part < group(stage.devices.front()).devices.size(); ++part) {
    std::vector<int> members;
    for (const int number : stage.devices) members.push_back(group(number).devices[part]);
    shards.push_back(shards_by_memory(on_.cluster, members));
  }
  return shards;
}

double TensorGroups::bytes_of(const MeshChoice& choice, std::size_t stage, std::size_t replica,
                              const ModelFacts& part, double shard) const {
  const auto replicas = static_cast<double>(choice.stages[stage].devices.size());
  const auto& of_stage = choice.stages[stage];
  const double own = at_once(choice, stage, replica);
  if (choice.scheme == Scheme::Pipeline) {
    return stage_use(part, of_stage.pieces, load_of(on_.input, choice, stage, replica, shard))
        .model();
  }
  return memory_use(part, choice.keeping,
                    {.ranks = static_cast<int>(replicas),
                     .shard = shard,
                     .samples = static_cast<double>(of_stage.samples[replica]),
                     .at_once = std::ceil(own),
                     .bucket_bytes = on_.input.bucket_mb * double(1 << 20),
                     .evaluates = on_.input.evaluates},
                    0)
      .model();
}

/// The needs of a choice that is not yet expanded, by member of every group, in their order. Equal
/// members are asked once.
std::vector<double> TensorGroups::needed_by_members(const MeshChoice& choice) const {
  std::vector<double> needed;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    const auto shards = shards_of(stage);
    std::map<std::tuple<std::size_t, std::size_t, std::int64_t, double, std::size_t>, double> known;
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      const auto kind = of_groups_->device(stage.devices[r]).facts;
      const auto of_own = choice.even ? 0 : r;  // in flight on it
      for (std::size_t part = 0; part < shards.size(); ++part) {
        const double shard = shards[part][r];
        const auto [place, fresh] =
            known.try_emplace({kind, part, stage.samples[r], shard, of_own});
        if (fresh) place->second = bytes_of(choice, s, r, kinds_[kind].parts[part], shard);
        needed.push_back(place->second);
      }
    }
  }
  return needed;
}

}  // namespace bimetal::plan
