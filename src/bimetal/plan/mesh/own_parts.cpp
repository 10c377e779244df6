// Pipelines of neighbours whose number of parts of tensors differs by stage.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/tensor_groups.h"

namespace bimetal::plan {
namespace {

constexpr std::size_t kLookedAt = 2;  // closely, with all schedules and numbers of micro-batches

using Counts = std::vector<std::size_t>;

/// By stage the groups of its replicas: devices go stage by stage, replica by replica.
std::vector<Groups> groups_by_stage(const Counts& parts, const Counts& replicas) {
  std::vector<Groups> stages;
  int next = 0;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    for (auto& group : stages.emplace_back(replicas[s])) {
      group.resize(parts[s]);
      std::iota(group.begin(), group.end(), next);
      next += static_cast<int>(parts[s]);
    }
  }
  return stages;
}

/// All sequences of stages with one device, or with `parts` neighbours of one host, over the
/// devices from `next` on: each stage's number of devices.
void sequences_from(const Cluster& cluster, std::size_t parts, std::size_t next, Counts& stages,
                    std::vector<Counts>& found) {
  const auto count = static_cast<std::size_t>(cluster.size());
  if (next == count) {
    const auto whole = std::ranges::count(stages, std::size_t{1});
    if (whole > 0 && whole < std::ssize(stages)) found.push_back(stages);
    return;
  }
  for (const std::size_t own : {std::size_t{1}, parts}) {
    if (next + own > count) continue;
    std::vector<int> group(own);
    std::iota(group.begin(), group.end(), static_cast<int>(next));
    if (!in_one_host(cluster, group)) continue;
    stages.push_back(own);
    sequences_from(cluster, parts, next + own, stages, found);
    stages.pop_back();
  }
}

struct Candidate {
  std::vector<TensorGroup> groups;
  MeshChoice choice;  ///< of groups
};

/// By each of the weights until one fits.
std::optional<Candidate> candidate_of(const MeshProblem& on, const StagesWish& wish,
                                      const Counts& parts) {
  const Groups stages = in_their_order(parts);
  const auto layout = in_their_order(Counts(parts.size(), 1));
  Groups in_parts;
  std::ranges::copy_if(stages, std::back_inserter(in_parts),
                       [](const auto& devices) { return devices.size() > 1; });
  std::optional<Candidate> best;
  for (const auto& weights : weights_to_try(on, wish, in_parts)) {
    std::vector<TensorGroup> groups;
    for (const auto& devices : stages) {
      groups.push_back({devices, devices.size() > 1 ? weights : std::vector{1.0}});
    }
    const TensorGroups grouped(on, groups);
    auto choice = at_a_glance(grouped.problem(), wish, layout);
    if (!choice || (best && !better(*choice, best->choice))) continue;
    best = {std::move(groups), std::move(*choice)};
    if (best->choice.fits()) break;
  }
  return best;
}

std::optional<MeshChoice> looked_at(const MeshProblem& on, const StagesWish& wish,
                                    std::vector<TensorGroup> groups, const Layout& layout) {
  const TensorGroups grouped(on, std::move(groups));
  auto choice = pipeline_of(grouped.problem(), wish, layout);
  if (!choice) return std::nullopt;
  return grouped.expanded(std::move(*choice));
}

bool may_have_own_parts(const MeshProblem& on, const StagesWish& wish) {
  const bool refused = !wish.own_parts || !wish.pipelines || !wish.pipelines_in_parts;
  return on.input.parts && !refused && wish.tensor == 0 && wish.replicas <= 1 &&
         on.cluster.size() <= kDividedFreely;
}

}  // namespace

std::optional<MeshChoice> in_parts_as_wished(const MeshProblem& on, const StagesWish& wish) {
  const auto& parts = wish.stage_tensor;
  auto replicas = wish.stage_replicas;
  if (replicas.empty())
    replicas.resize(parts.size(), static_cast<std::size_t>(std::max(1, wish.replicas)));
  const auto most = static_cast<int>(std::ranges::max(parts));
  if (!on.input.parts || most > most_tensor_ranks(on.input.facts)) return std::nullopt;
  std::vector<TensorGroup> groups;
  for (const auto& of_stage : groups_by_stage(parts, replicas)) {
    const bool whole = of_stage.front().size() == 1;
    const auto weights =
        whole ? std::vector<std::vector<double>>{{1}} : weights_to_try(on, wish, of_stage);
    if (weights.empty()) return std::nullopt;
    for (const auto& devices : of_stage) groups.push_back({devices, weights.front()});
  }
  return looked_at(on, wish, std::move(groups), in_their_order(replicas));
}

std::optional<MeshChoice> in_own_parts(const MeshProblem& on, const StagesWish& wish) {
  if (!may_have_own_parts(on, wish)) return std::nullopt;
  std::vector<Candidate> all;
  const int most = std::min(on.cluster.size(), most_tensor_ranks(on.input.facts));
  for (int parts = 2; parts <= most; ++parts) {
    std::vector<Counts> found;
    Counts stages;
    sequences_from(on.cluster, static_cast<std::size_t>(parts), 0, stages, found);
    for (const auto& counts : found) {
      if (wish.stages > 0 && std::ssize(counts) != wish.stages) continue;
      if (auto one = candidate_of(on, wish, counts)) all.push_back(std::move(*one));
    }
  }
  std::ranges::stable_sort(all, better, &Candidate::choice);
  std::optional<MeshChoice> best;
  if (all.size() > kLookedAt) all.resize(kLookedAt);
  for (auto& one : all) {
    auto choice = looked_at(on, wish, std::move(one.groups), one.choice.layout());
    if (choice && (!best || beats(*choice, *best))) best = std::move(choice);
  }
  return best;
}

}  // namespace bimetal::plan
