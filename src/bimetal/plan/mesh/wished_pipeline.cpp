#include "bimetal/plan/mesh/wished_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_choice.h"
#include "bimetal/plan/mesh/tensor_groups.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr std::size_t kSimulatedCounts = 3;  // numbers of micro-batches, of a schedule

/// As a run has them: of one of `replicas` pipelines of `stages` devices.
int micro_batches_of(const MeshInput& input, schedule::Kind kind, int stages, int replicas) {
  const auto share = std::max<std::int64_t>(1, input.global_batch / replicas);
  const auto limit = input.micro_batch > 0 ? input.micro_batch : share;
  return schedule::usual_micro_batches(kind, stages, share, (share + limit - 1) / limit);
}

/// Numbers of micro-batches to try, which is to be left off at the first that can be unless any
/// will do: a replica with the smaller share may have fewer samples than the usual number.
std::vector<int> counts_to_try(const MeshInput& input, const Cluster& cluster,
                               const StagesWish& wish, schedule::Kind kind, const Layout& layout) {
  if (wish.micro_batches > 0) return {wish.micro_batches};
  const int replicas = is_box(cluster, layout) ? static_cast<int>(layout.front().size()) : 1;
  const int stages = in_line(cluster, layout);
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

/// Of numbers of micro-batches, where stages of one piece begin.
using KnownCuts = std::map<int, std::vector<std::size_t>>;

/// A cut does not depend on the schedule, but for what fits: with another that keeps more the same
/// is the best if it fits there. (Replicas are then dealt by their speeds with that cut at once.)
std::optional<MeshChoice> cut_for(const MeshInput& input, const Cluster& cluster,
                                  const StagesWish& wish, const Layout& layout,
                                  PipelineOptions options, KnownCuts& known) {
  const auto place = known.find(options.micro_batches);
  if (options.chunks > 1 || !wish.cuts.empty() || place == known.end()) {
    options.cuts = wish.cuts;
    auto choice = choose_cut(input, cluster, layout, options);
    if (!choice || options.chunks > 1) return choice;
    const auto begins = choice->begins();
    known.insert_or_assign(options.micro_batches, std::vector(begins.begin() + 1, begins.end()));
    return choice;
  }
  options.cuts = place->second;
  auto choice = choose_cut(input, cluster, layout, options);
  if (choice && choice->fits()) return choice;
  options.cuts.clear();
  return choose_cut(input, cluster, layout, options);
}

/// By the formula, the best first.
std::vector<MeshChoice> in_micro_batches(const MeshInput& input, const Cluster& cluster,
                                         const StagesWish& wish, const Layout& layout,
                                         const WayThrough& way, KnownCuts& known) {
  PipelineOptions options{.schedule = way.schedule,
                          .chunks = way.chunks,
                          .keeping = wish.keeping,
                          .any_size = wish.micro_batches > 0};
  std::vector<MeshChoice> found;
  for (const int count : counts_to_try(input, cluster, wish, options.schedule, layout)) {
    options.micro_batches = count;
    if (auto choice = cut_for(input, cluster, wish, layout, options, known)) {
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

std::optional<MeshChoice> pipeline_of(const MeshInput& input, const Cluster& cluster,
                                      const StagesWish& wish, const Layout& layout) {
  const auto units = input.facts.front().units.size();
  const auto ways = wish.any_schedule ? ways_worth_a_try(cluster, wish.keeping, layout, units)
                                      : std::vector<WayThrough>{{wish.schedule, wish.chunks}};
  KnownCuts known;
  std::optional<MeshChoice> best;
  for (const auto& way : ways) {
    std::optional<MeshChoice> of_way;
    for (auto& choice : in_micro_batches(input, cluster, wish, layout, way, known)) {
      auto run = simulated(input, cluster, std::move(choice));
      if (!of_way || better(run, *of_way)) of_way = std::move(run);
    }
    if (of_way && (!best || beats(*of_way, *best))) best = std::move(of_way);
  }
  return best;
}

std::optional<MeshChoice> at_a_glance(const MeshInput& input, const Cluster& cluster,
                                      StagesWish wish, const Layout& layout) {
  const WayThrough way{wish.schedule, wish.chunks};
  KnownCuts known;
  wish.any_micro_batches = false;
  auto seen = in_micro_batches(input, cluster, wish, layout, way, known);
  if (seen.empty()) return std::nullopt;
  if (wish.micro_batches == 0) {
    wish.micro_batches = 4 * seen.front().micro_batches;
    std::ranges::move(in_micro_batches(input, cluster, wish, layout, way, known),
                      std::back_inserter(seen));
  }
  return *std::ranges::min_element(seen, better);
}

std::vector<std::vector<double>> weights_to_try(const MeshInput& input, const Cluster& cluster,
                                                const StagesWish& wish, const Groups& groups) {
  const auto parts = groups.front().size();
  if (!wish.tensor_weights.empty()) {
    if (wish.tensor_weights.size() != parts) return {};
    return {wish.tensor_weights};
  }
  if (!wish.parts_by_speed) return {std::vector<double>(parts, 1.0)};
  auto by_speed = parts_by_speed(input, cluster, groups);
  auto by_memory = parts_by_memory(cluster, groups);
  if (by_memory == by_speed) return {std::move(by_speed)};
  return {std::move(by_speed), std::move(by_memory)};
}

}  // namespace bimetal::plan
