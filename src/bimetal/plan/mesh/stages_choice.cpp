// Decides what a job leaves open: how its devices form stages, in their order.

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/tensor_groups.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr std::size_t kSimulatedCounts = 3;  // numbers of micro-batches, of a schedule

/// As in a run: for one of `replicas` pipelines of `stages` devices.
int micro_batches_of(const MeshInput& input, schedule::Kind kind, int stages, int replicas) {
  const auto share = std::max<std::int64_t>(1, input.global_batch / replicas);
  const auto limit = input.micro_batch > 0 ? input.micro_batch : share;
  return schedule::usual_micro_batches(kind, stages, share, (share + limit - 1) / limit);
}

/// Numbers of micro-batches to try, which is to be left off at the first that can be unless any
/// will do: a replica with the smaller share may have fewer samples than the usual number.
std::vector<int> counts_to_try(const MeshProblem& on, const StagesWish& wish, schedule::Kind kind,
                               const Layout& layout) {
  if (wish.micro_batches > 0) return {wish.micro_batches};
  const int replicas = is_box(on.cluster, layout) ? static_cast<int>(layout.front().size()) : 1;
  const int stages = in_line(on.cluster, layout);
  std::vector<int> counts;
  for (int count = micro_batches_of(on.input, kind, stages, replicas); count > 0; count /= 2) {
    counts.push_back(schedule::micro_batches_near(kind, stages, count));
  }
  if (!wish.any_micro_batches) return counts;
  for (const int count : micro_batch_counts(stages, on.input.global_batch)) {
    counts.push_back(schedule::micro_batches_near(kind, stages, count));
  }
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

/// By the number of micro-batches: where stages of one piece begin.
using KnownCuts = std::map<int, std::vector<std::size_t>>;

/// A cut does not depend on the schedule, but for what fits: with another that keeps more the same
/// is the best if it fits there. (Replicas are then dealt by their speeds with that cut at once.)
std::optional<MeshChoice> cut_for(const MeshProblem& on, const StagesWish& wish,
                                  const Layout& layout, PipelineOptions options, KnownCuts& known) {
  const auto place = known.find(options.micro_batches);
  if (options.chunks > 1 || !wish.cuts.empty() || place == known.end()) {
    options.cuts = wish.cuts;
    auto choice = choose_cut(on, layout, options);
    if (!choice || options.chunks > 1) return choice;
    const auto begins = choice->begins();
    known.insert_or_assign(options.micro_batches, std::vector(begins.begin() + 1, begins.end()));
    return choice;
  }
  options.cuts = place->second;
  auto choice = choose_cut(on, layout, options);
  if (choice && choice->fits()) return choice;
  options.cuts.clear();
  return choose_cut(on, layout, options);
}

/// By the formula, the best first.
std::vector<MeshChoice> in_micro_batches(const MeshProblem& on, const StagesWish& wish,
                                         const Layout& layout, const WayThrough& way,
                                         KnownCuts& known) {
  PipelineOptions options{.schedule = way.schedule,
                          .chunks = way.chunks,
                          .keeping = wish.keeping,
                          .any_size = wish.micro_batches > 0};
  std::vector<MeshChoice> found;
  for (const int count : counts_to_try(on, wish, options.schedule, layout)) {
    options.micro_batches = count;
    if (auto choice = cut_for(on, wish, layout, options, known)) {
      found.push_back(std::move(*choice));
      if (!wish.any_micro_batches) break;
    }
  }
  std::ranges::stable_sort(found, better);
  if (found.size() > kSimulatedCounts) found.resize(kSimulatedCounts);
  return found;
}

}  // namespace

bool beats(const MeshChoice& a, const MeshChoice& b) {
  if (a.fits() != b.fits()) return a.fits();
  if (!a.fits()) return a.missing_bytes < b.missing_bytes;
  return a.step_s < b.step_s * (1 - kWorthwhile);
}

std::optional<MeshChoice> pipeline_of(const MeshProblem& on, const StagesWish& wish,
                                      const Layout& layout) {
  const auto units = on.units();
  const auto ways = wish.any_schedule ? ways_worth_a_try(on.cluster, wish.keeping, layout, units)
                                      : std::vector<WayThrough>{{wish.schedule, wish.chunks}};
  KnownCuts known;
  std::optional<MeshChoice> best;
  for (const auto& way : ways) {
    std::optional<MeshChoice> of_way;
    for (auto& choice : in_micro_batches(on, wish, layout, way, known)) {
      auto run = simulated(on, std::move(choice));
      if (!of_way || better(run, *of_way)) of_way = std::move(run);
    }
    if (of_way && (!best || beats(*of_way, *best))) best = std::move(of_way);
  }
  return best;
}

std::optional<MeshChoice> at_a_glance(const MeshProblem& on, StagesWish wish,
                                      const Layout& layout) {
  const WayThrough way{wish.schedule, wish.chunks};
  KnownCuts known;
  wish.any_micro_batches = false;
  auto seen = in_micro_batches(on, wish, layout, way, known);
  if (seen.empty()) return std::nullopt;
  if (wish.micro_batches == 0) {
    wish.micro_batches = 4 * seen.front().micro_batches;
    std::ranges::move(in_micro_batches(on, wish, layout, way, known), std::back_inserter(seen));
  }
  return *std::ranges::min_element(seen, better);
}

std::vector<std::vector<double>> weights_to_try(const MeshProblem& on, const StagesWish& wish,
                                                const Groups& groups) {
  const auto parts = groups.front().size();
  if (!wish.tensor_weights.empty()) {
    if (wish.tensor_weights.size() != parts) return {};
    return {wish.tensor_weights};
  }
  if (!wish.parts_by_speed) return {std::vector<double>(parts, 1.0)};
  auto by_speed = parts_by_speed(on, groups);
  auto by_memory = parts_by_memory(on.cluster, groups);
  if (by_memory == by_speed) return {std::move(by_speed)};
  return {std::move(by_speed), std::move(by_memory)};
}

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

/// For devices that have every tensor whole; those with fewer stages first.
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

/// For groups of devices that have tensors in parts of these weights.
std::vector<MeshChoice> in_stages_of(const MeshProblem& on, StagesWish wish, const Groups& groups,
                                     const std::vector<double>& weights) {
  wish.uneven = false;  // unless it has their numbers
  wish.pipelines = wish.pipelines && wish.pipelines_in_parts;
  const TensorGroups grouped(on, with_weights(groups, weights));
  auto all = in_stages(grouped.problem(), wish);
  for (auto& choice : all) choice = grouped.expanded(std::move(choice));
  return all;
}

/// For groups of so many neighbours.
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
