#include "bimetal/plan/mesh/stages_choice.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/layouts.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/own_parts.h"
#include "bimetal/plan/mesh/pipeline_cut.h"
#include "bimetal/plan/mesh/tensor_groups.h"

namespace bimetal::plan {
namespace {

constexpr std::size_t kLayouts = 4;  // of a number of stages, with all schedules and counts

Layout boxes(int stages, int replicas) {
  return in_their_order(std::vector<std::size_t>(static_cast<std::size_t>(stages),
                                                 static_cast<std::size_t>(replicas)));
}

/// All devices in that many stages.
std::vector<Layout> layouts_in(const Cluster& cluster, const StagesWish& wish, int stages) {
  if (!wish.stage_replicas.empty()) return {in_their_order(wish.stage_replicas)};
  std::vector<Layout> all;
  const int replicas = cluster.size() / stages;
  const bool divides = stages * replicas == cluster.size();
  if (divides && (wish.replicas == 0 || wish.replicas == replicas)) {
    all.push_back(boxes(stages, replicas));
  }
  if (!wish.uneven || wish.replicas > 0 || cluster.size() > kDividedFreely) return all;
  for (auto& layout :
       parts_of(boxes(1, cluster.size()).front(), static_cast<std::size_t>(stages))) {
    const bool as_many = layout.size() == static_cast<std::size_t>(stages);
    if (as_many && !is_box(cluster, layout)) all.push_back(std::move(layout));
  }
  return all;
}

/// The best of them at a glance.
std::vector<Layout> most_promising(const MeshProblem& on, const StagesWish& wish,
                                   std::vector<Layout> layouts) {
  if (layouts.size() <= kLayouts) return layouts;
  std::vector<MeshChoice> seen;
  for (const auto& layout : layouts) {
    if (auto choice = at_a_glance(on, wish, layout)) seen.push_back(std::move(*choice));
  }
  std::ranges::stable_sort(seen, better);
  if (seen.size() > kLayouts) seen.resize(kLayouts);
  layouts.clear();
  for (const auto& choice : seen) layouts.push_back(choice.layout());
  return layouts;
}

/// Of devices that have every tensor whole; those with fewer stages first.
std::vector<MeshChoice> in_stages(const MeshProblem& on, const StagesWish& wish) {
  std::vector<MeshChoice> all;
  for (int stages = 1; stages <= on.cluster.size(); ++stages) {
    if (wish.stages > 0 && stages != wish.stages) continue;
    if (stages > 1 && !wish.pipelines) break;
    std::optional<MeshChoice> best;
    for (const auto& layout : most_promising(on, wish, layouts_in(on.cluster, wish, stages))) {
      auto choice = stages == 1 ? choose_data(on, layout.front(), wish.keeping,
                                              /*may_idle=*/true)
                                : pipeline_of(on, wish, layout);
      if (choice && (!best || beats(*choice, *best))) best = std::move(choice);
    }
    if (best) all.push_back(std::move(*best));
  }
  return all;
}

/// Of groups of devices that have tensors in parts of these weights.
std::vector<MeshChoice> in_stages_of(const MeshProblem& on, StagesWish wish, const Groups& groups,
                                     const std::vector<double>& weights) {
  wish.uneven = false;  // unless it has their numbers
  wish.pipelines = wish.pipelines && wish.pipelines_in_parts;
  const TensorGroups grouped(on, with_weights(groups, weights));
  auto all = in_stages(grouped.problem(), wish);
  for (auto& choice : all) choice = grouped.expanded(std::move(choice));
  return all;
}

/// Of groups of so many neighbours.
std::vector<MeshChoice> with_parts(const MeshProblem& on, const StagesWish& wish, int tensor) {
  const auto groups = boxes(on.cluster.size() / tensor, tensor);
  std::vector<MeshChoice> all;
  for (const auto& weights : weights_to_try(on, wish, groups)) {
    if (std::ranges::any_of(all, &MeshChoice::fits)) break;
    std::ranges::move(in_stages_of(on, wish, groups, weights), std::back_inserter(all));
  }
  return all;
}

/// Numbers of parts that the wish, the devices and the model allow.
std::vector<int> part_counts(const MeshProblem& on, const StagesWish& wish) {
  std::vector<int> counts;
  const int most =
      on.input.parts ? std::min(on.cluster.size(), most_tensor_ranks(on.input.facts)) : 1;
  for (int tensor = 2; tensor <= most; ++tensor) {
    const bool wished = wish.tensor == 0 || wish.tensor == tensor;
    if (wished && on.cluster.size() % tensor == 0) counts.push_back(tensor);
  }
  return counts;
}

}  // namespace

std::vector<MeshChoice> choose_stages(const MeshProblem& on, const StagesWish& wish) {
  std::vector<MeshChoice> all;
  if (!wish.stage_tensor.empty()) {
    if (auto choice = in_parts_as_wished(on, wish)) all.push_back(std::move(*choice));
    return all;
  }
  if (wish.tensor <= 1) all = in_stages(on, wish);
  for (const int tensor : part_counts(on, wish)) {
    auto more = with_parts(on, wish, tensor);
    std::ranges::move(more, std::back_inserter(all));
  }
  if (auto choice = in_own_parts(on, wish)) all.push_back(std::move(*choice));
  auto best = all.begin();
  for (auto next = all.begin(); next != all.end(); ++next) {
    if (beats(*next, *best)) best = next;
  }
  if (best != all.end()) std::rotate(all.begin(), best, best + 1);
  return all;
}

}  // namespace bimetal::plan
