#include "bimetal/plan/mesh/pipeline_cut.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/plan/mesh/dealt.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_choice.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/mesh/tensor_groups.h"

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

/// Of numbers of micro-batches, where stages of one piece begin.
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

}  // namespace bimetal::plan
