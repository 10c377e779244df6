#include "bimetal/plan/mesh/stages_choice.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/layouts.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_choice.h"
#include "bimetal/plan/mesh/tensor_groups.h"
#include "bimetal/plan/mesh/tensor_parts.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr int kDividedFreely = 8;            // devices
constexpr std::size_t kSimulatedCounts = 3;  // numbers of micro-batches, of a schedule
constexpr std::size_t kLayouts = 4;          // of a number of stages, with all schedules and counts

/// As a run has them: of one of `replicas` pipelines of `stages` devices.
int micro_batches_of(const MeshInput& input, schedule::Kind kind, int stages, int replicas) {
  const auto share = std::max<std::int64_t>(1, input.global_batch / replicas);
  const auto limit = input.micro_batch > 0 ? input.micro_batch : share;
  return schedule::usual_micro_batches(kind, stages, share, (share + limit - 1) / limit);
}

bool beats(const MeshChoice& a, const MeshChoice& b) {
  if (a.fits() != b.fits()) return a.fits();
  if (!a.fits()) return a.missing_bytes < b.missing_bytes;
  return a.step_s < b.step_s * (1 - kWorthwhile);
}

/// Numbers of micro-batches to try, which is to be left off at the first that can be unless any
/// will do: a replica with the smaller share may have fewer samples than the usual number.
std::vector<int> counts_to_try(const MeshInput& input, const StagesWish& wish, schedule::Kind kind,
                               const Layout& layout) {
  if (wish.micro_batches > 0) return {wish.micro_batches};
  const int replicas = is_box(layout) ? static_cast<int>(layout.front().size()) : 1;
  const int stages = in_line(layout);
  std::vector<int> counts;
  for (int count = micro_batches_of(input, kind, stages, replicas); count > 0; count /= 2) {
    counts.push_back(schedule::micro_batches_near(kind, stages, count));
  }
  if (!wish.any_micro_batches) return counts;
  for (const int count : micro_batch_counts(stages, input.global_batch)) {
    counts.push_back(schedule::micro_batches_near(kind, stages, count));
  }
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

/// By the formula, the best first.
std::vector<MeshChoice> in_micro_batches(const MeshInput& input, const Cluster& cluster,
                                         const StagesWish& wish, const Layout& layout,
                                         PipelineOptions options) {
  std::vector<MeshChoice> found;
  for (const int count : counts_to_try(input, wish, options.schedule, layout)) {
    options.micro_batches = count;
    if (auto choice = choose_cut(input, cluster, layout, options)) {
      found.push_back(std::move(*choice));
      if (!wish.any_micro_batches) break;
    }
  }
  std::ranges::stable_sort(found, better);
  if (found.size() > kSimulatedCounts) found.resize(kSimulatedCounts);
  return found;
}

std::optional<MeshChoice> pipeline_of(const MeshInput& input, const Cluster& cluster,
                                      const StagesWish& wish, const Layout& layout) {
  const auto ways = wish.any_schedule
                        ? ways_worth_a_try(wish.keeping, layout, input.facts.front().units.size())
                        : std::vector<WayThrough>{{wish.schedule, wish.chunks}};
  std::optional<MeshChoice> best;
  for (const auto& [kind, chunks] : ways) {
    std::optional<MeshChoice> of_kind;
    for (auto& choice : in_micro_batches(input, cluster, wish, layout,
                                         {.schedule = kind,
                                         .chunks = chunks,
                                         .keeping = wish.keeping,
                                         .cuts = wish.cuts,
                                         .any_size = wish.micro_batches > 0})) {
      auto run = simulated(input, cluster, std::move(choice));
      if (!of_kind || better(run, *of_kind)) of_kind = std::move(run);
    }
    if (of_kind && (!best || beats(*of_kind, *best))) best = std::move(of_kind);
  }
  return best;
}

/// Ranks go stage by stage.
Layout stages_of(const std::vector<std::size_t>& replicas) {
  Layout layout;
  int next = 0;
  for (const auto count : replicas) {
    auto& stage = layout.emplace_back(count);
    std::iota(stage.begin(), stage.end(), next);
    next += static_cast<int>(count);
  }
  return layout;
}

Layout boxes(int stages, int replicas) {
  return stages_of(std::vector<std::size_t>(static_cast<std::size_t>(stages),
                                            static_cast<std::size_t>(replicas)));
}

/// All devices in that many stages.
std::vector<Layout> layouts_in(const Cluster& cluster, const StagesWish& wish, int stages) {
  if (!wish.stage_replicas.empty()) return {stages_of(wish.stage_replicas)};
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
    if (as_many && !is_box(layout)) all.push_back(std::move(layout));
  }
  return all;
}

/// The step of a layout at a glance: by the formula, in one schedule, in as many micro-batches as a
/// run takes by itself and in four times as many, since short ones suit layouts of unlike stages.
std::optional<MeshChoice> at_a_glance(const MeshInput& input, const Cluster& cluster,
                                      StagesWish wish, const Layout& layout) {
  const PipelineOptions options{.schedule = wish.schedule,
                                .chunks = wish.chunks,
                                .keeping = wish.keeping,
                                .cuts = wish.cuts,
                                .any_size = wish.micro_batches > 0};
  wish.any_micro_batches = false;
  auto seen = in_micro_batches(input, cluster, wish, layout, options);
  if (seen.empty()) return std::nullopt;
  if (wish.micro_batches == 0) {
    wish.micro_batches = 4 * seen.front().micro_batches;
    std::ranges::move(in_micro_batches(input, cluster, wish, layout, options),
                      std::back_inserter(seen));
  }
  return *std::ranges::min_element(seen, better);
}

/// The best of them at a glance.
std::vector<Layout> most_promising(const MeshInput& input, const Cluster& cluster,
                                   const StagesWish& wish, std::vector<Layout> layouts) {
  if (layouts.size() <= kLayouts) return layouts;
  std::vector<std::pair<MeshChoice, Layout>> seen;
  for (auto& layout : layouts) {
    auto choice = at_a_glance(input, cluster, wish, layout);
    if (choice) seen.emplace_back(std::move(*choice), std::move(layout));
  }
  std::ranges::stable_sort(seen, better, &std::pair<MeshChoice, Layout>::first);
  if (seen.size() > kLayouts) seen.resize(kLayouts);
  layouts.clear();
  for (auto& [choice, layout] : seen) layouts.push_back(std::move(layout));
  return layouts;
}

/// Of devices that have every tensor whole; those with fewer stages first.
std::vector<MeshChoice> in_stages(const MeshInput& input, const Cluster& cluster,
                                  const StagesWish& wish) {
  std::vector<MeshChoice> all;
  for (int stages = 1; stages <= cluster.size(); ++stages) {
    if (wish.stages > 0 && stages != wish.stages) continue;
    if (stages > 1 && !wish.pipelines) break;
    std::optional<MeshChoice> best;
    for (const auto& layout :
         most_promising(input, cluster, wish, layouts_in(cluster, wish, stages))) {
      auto choice = stages == 1 ? choose_data(input, cluster, layout.front(), wish.keeping,
                                              /*may_idle=*/true)
                                : pipeline_of(input, cluster, wish, layout);
      if (choice && (!best || beats(*choice, *best))) best = std::move(choice);
    }
    if (best) all.push_back(std::move(*best));
  }
  return all;
}

/// Of groups of devices that have tensors in parts of these weights.
std::vector<MeshChoice> in_stages_of(const MeshInput& input, const Cluster& cluster,
                                     StagesWish wish, const Groups& groups,
                                     const std::vector<double>& weights) {
  wish.uneven = false;
  wish.pipelines = wish.pipelines && wish.pipelines_in_parts;
  const TensorGroups grouped(input, cluster, groups, weights);
  auto all = in_stages(grouped.input(), grouped.cluster(), wish);
  for (auto& choice : all) choice = grouped.expanded(std::move(choice));
  return all;
}

/// Of groups of so many neighbours.
std::vector<MeshChoice> with_parts(const MeshInput& input, const Cluster& cluster,
                                   const StagesWish& wish, int tensor) {
  const auto groups = boxes(cluster.size() / tensor, tensor);
  if (!wish.tensor_weights.empty()) {
    if (wish.tensor_weights.size() != static_cast<std::size_t>(tensor)) return {};
    return in_stages_of(input, cluster, wish, groups, wish.tensor_weights);
  }
  const std::vector<double> equal(static_cast<std::size_t>(tensor), 1.0);
  if (!wish.parts_by_speed) return in_stages_of(input, cluster, wish, groups, equal);
  const auto by_speed = parts_by_speed(input, cluster, groups);
  auto all = in_stages_of(input, cluster, wish, groups, by_speed);
  const auto by_memory = parts_by_memory(cluster, groups);
  if (by_memory == by_speed || std::ranges::any_of(all, &MeshChoice::fits)) return all;
  std::ranges::move(in_stages_of(input, cluster, wish, groups, by_memory), std::back_inserter(all));
  return all;
}

/// Numbers of parts that the wish, the devices and the model allow.
std::vector<int> part_counts(const MeshInput& input, const Cluster& cluster,
                             const StagesWish& wish) {
  std::vector<int> counts;
  int most = input.parts ? cluster.size() : 1;
  for (const auto& facts : input.facts) most = std::min(most, most_tensor_ranks(facts));
  for (int tensor = 2; tensor <= most; ++tensor) {
    const bool wished = wish.tensor == 0 || wish.tensor == tensor;
    if (wished && cluster.size() % tensor == 0) counts.push_back(tensor);
  }
  return counts;
}

}  // namespace

std::vector<MeshChoice> choose_stages(const MeshInput& input, const Cluster& cluster,
                                      const StagesWish& wish) {
  std::vector<MeshChoice> all;
  if (wish.tensor <= 1) all = in_stages(input, cluster, wish);
  for (const int tensor : part_counts(input, cluster, wish)) {
    auto more = with_parts(input, cluster, wish, tensor);
    std::ranges::move(more, std::back_inserter(all));
  }
  auto best = all.begin();
  for (auto next = all.begin(); next != all.end(); ++next) {
    if (beats(*next, *best)) best = next;
  }
  if (best != all.end()) std::rotate(all.begin(), best, best + 1);
  return all;
}

}  // namespace bimetal::plan
