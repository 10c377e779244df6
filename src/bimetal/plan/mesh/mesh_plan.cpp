#include "bimetal/plan/mesh/mesh_plan.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/mesh/tensor_groups.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr std::ptrdiff_t kMostPipelines = 3;  // in a list of the best
constexpr std::ptrdiff_t kMostInParts = 2;    // likewise, with as many on all stages
constexpr int kMostParts = 8;
constexpr int kEveryNumber = 16;  // devices; of more, numbers of parts are powers of two

void check(const MeshProblem& on) {
  const auto refuse = [](const char* flaw) { throw Error(ErrorCode::InvalidArgument, flaw); };
  if (on.input.facts.empty() || on.input.facts.front().units.empty()) {
    refuse("a plan needs the facts of a model of one unit or more");
  }
  for (const auto& facts : on.input.facts) {
    if (facts.units.size() != on.units()) {
      refuse("the facts of a plan must be of one model");
    }
  }
  for (const auto& device : on.cluster.devices()) {
    if (device.facts >= on.input.facts.size()) refuse("a device's facts are not there");
  }
  if (on.input.global_batch < 1) refuse("a plan needs a global batch of at least 1");
}

/// The same search among groups of devices that have tensors in parts. Whether anything fits.
bool search_groups(const MeshProblem& on, std::vector<TensorGroup> groups, FoundMeshes& found) {
  const TensorGroups grouped(on, std::move(groups));
  auto more =
      search_meshes(grouped.problem(), std::min(on.input.most_level, on.input.level_in_parts));
  found.tried += more.tried;
  bool fits = false;
  for (auto& choice : more.choices) {
    found.choices.push_back(grouped.expanded(std::move(choice)));
    fits = fits || found.choices.back().fits();
  }
  return fits;
}

/// Tries all numbers of parts, also with devices beside the groups, which have tensors whole, in
/// stages of their own.
void search_parts(const MeshProblem& on, FoundMeshes& found) {
  const auto search = [&](const Groups& groups, const std::vector<int>& whole) {
    for (const auto& weights : weights_to_try(on, {.parts_by_speed = true}, groups)) {
      if (search_groups(on, with_weights(groups, weights, whole), found)) return;
    }
  };
  const int devices = on.cluster.size();
  const int most = std::min({kMostParts, devices, most_tensor_ranks(on.input.facts)});
  const auto order = fastest_first(on);
  for (int parts = 2; parts <= most; ++parts) {
    const bool power = (parts & (parts - 1)) == 0;
    if (devices > kEveryNumber && !power) continue;
    const auto count = static_cast<std::size_t>(parts);
    for (const auto& groups : groupings_of(on.cluster, order, count)) search(groups, {});
    const bool beside = devices <= kSearchedThrough || (power && devices <= kEveryNumber);
    if (!on.input.own_parts || !beside) continue;
    for (const auto& [groups, whole] : groupings_beside(on.cluster, order, count)) {
      search(groups, whole);
    }
  }
}

bool has_parts(const MeshChoice& choice) {
  return choice.most_parts() > 1;
}

bool has_own_parts(const MeshChoice& choice) {
  return std::ranges::min(choice.parts()) < choice.most_parts();
}

/// The kind of a plan: the best of each kind is shown. With tensors in parts, of which there are
/// few plans, the best level is taken.
auto kind_of_plan(const MeshChoice& choice) {
  const int level = has_parts(choice) ? 0 : choice.keeping.level;
  return std::tuple(choice.scheme, level, choice.stages.size(), choice.even,
                    choice.even && choice.stages.front().replicas() > 1, choice.most_parts(),
                    has_own_parts(choice));
}

/// One plan of each kind. Those with tensors in parts take no other's place, so that it is said
/// what speaks for them or against.
MeshPlan sort_out(FoundMeshes found, std::size_t most) {
  std::ranges::stable_sort(found.choices, better);
  MeshPlan plan;
  plan.tried = found.tried;
  std::set<decltype(kind_of_plan(found.choices.front()))> seen;
  for (auto& choice : found.choices) {
    if (!seen.insert(kind_of_plan(choice)).second) continue;
    auto& list = choice.fits() ? plan.best : plan.others;
    const auto parts = std::ranges::count_if(list, has_parts);
    const auto own_parts = std::ranges::count_if(list, has_own_parts);
    const auto pipelines = std::ranges::count_if(list, [](const MeshChoice& other) {
      return !has_parts(other) && other.scheme == Scheme::Pipeline;
    });
    const bool room = has_own_parts(choice)               ? own_parts == 0
                      : has_parts(choice)                 ? parts - own_parts < kMostInParts
                      : choice.scheme == Scheme::Pipeline ? pipelines < kMostPipelines
                                                          : true;
    const bool few = std::ssize(list) - parts < static_cast<std::ptrdiff_t>(most);
    // All others are compared with one device alone.
    const bool always = has_parts(choice) || choice.scheme == Scheme::Alone;
    if (room && (few || always)) list.push_back(std::move(choice));
  }
  return plan;
}

void explain(const Cluster& cluster, MeshPlan& plan) {
  const MeshChoice* best = plan.best.empty() ? nullptr : &plan.best.front();
  for (auto* const list : {&plan.best, &plan.others}) {
    for (auto& choice : *list) {
      if (&choice != best) choice.reason = why_not(cluster, choice, best);
    }
  }
  if (!plan.asked || !plan.asked->choice) return;
  auto& own = *plan.asked->choice;
  const bool as_fast = best && own.fits() && own.step_s < best->step_s * (1 + kWorthwhile);
  own.reason = as_fast ? "as fast as the best" : why_not(cluster, own, best);
}

}  // namespace

bool is_box(const Cluster& cluster, const Layout& layout) {
  const auto& first = layout.front();
  const auto parts_of = [&](const auto& stage) { return cluster.device(stage.front()).parts; };
  return std::ranges::all_of(layout, [&](const auto& stage) {
    const bool alike = first.size() == 1 || parts_of(stage) == parts_of(first);
    return stage.size() == first.size() && alike;
  });
}

int in_line(const Cluster& cluster, const Layout& layout) {
  if (is_box(cluster, layout)) return static_cast<int>(layout.size());
  std::size_t devices = 0;
  for (const auto& stage : layout) devices += stage.size();
  return static_cast<int>(devices);
}

std::vector<std::size_t> MeshChoice::begins() const {
  std::vector<std::size_t> begins;
  for (std::size_t chunk = 0; chunk < stages.front().pieces.size(); ++chunk) {
    for (const auto& stage : stages) begins.push_back(stage.pieces[chunk].begin);
  }
  return begins;
}

void MeshChoice::take_pieces(const std::vector<std::size_t>& begins, std::size_t units) {
  const auto count = static_cast<int>(stages.size());
  for (int s = 0; s < count; ++s) {
    stages[static_cast<std::size_t>(s)].pieces = schedule::pieces_of(begins, units, count, s);
  }
}

Layout MeshChoice::layout() const {
  Layout layout;
  for (const auto& stage : stages) layout.push_back(stage.devices);
  return layout;
}

int MeshChoice::devices() const {
  std::size_t count = 0;
  for (const auto& stage : stages) count += stage.devices.size();
  return static_cast<int>(count);
}

std::vector<std::size_t> MeshChoice::replicas() const {
  std::vector<std::size_t> counts;
  for (const auto& stage : stages) counts.push_back(stage.replicas());
  return counts;
}

std::vector<std::size_t> MeshChoice::parts() const {
  std::vector<std::size_t> counts;
  for (const auto& stage : stages) counts.push_back(stage.parts());
  return counts;
}

void MeshChoice::take_peaks(const Cluster& cluster, const std::vector<double>& needed) {
  peak_bytes.clear();
  kept_bytes.clear();
  missing_bytes = 0;
  missing_on = -1;
  for (const auto& stage : stages) {
    for (const int index : stage.devices) {
      const auto& device = cluster.device(index);
      const double bytes = needed[peak_bytes.size()];
      const double free = device.memory_bytes - bytes;
      kept_bytes.push_back(device.keeps_freed ? kept_beside(bytes, free) : 0);
      peak_bytes.push_back(bytes);
      if (-free <= missing_bytes) continue;
      missing_bytes = -free;
      missing_on = index;
    }
  }
}

std::int64_t MeshChoice::most_at_once() const {
  if (scheme != Scheme::Tensor || micro_batches <= 1) return 0;
  const auto most = *std::ranges::max_element(stages.front().samples);
  return (most + micro_batches - 1) / micro_batches;
}

MeshPlan plan_mesh(const MeshProblem& on, std::optional<AskedMesh> asked) {
  check(on);
  auto found = search_meshes(on, on.input.most_level);
  if (on.input.parts) search_parts(on, found);
  if (asked && asked->choice) found.choices.push_back(*asked->choice);
  auto plan = sort_out(std::move(found), on.input.most);
  plan.asked = std::move(asked);
  plan.said = on.input.said;
  explain(on.cluster, plan);
  return plan;
}

schedule::Simulation run_of(const MeshProblem& on, const MeshChoice& choice) {
  if (has_parts(choice)) {
    const auto [groups, of_groups] = groups_of(choice);
    const TensorGroups grouped(on, groups);
    return run_of(grouped.problem(), of_groups);
  }
  if (!choice.even) {
    return run_dealt(choice, slowness_of(on, choice), piece_costs(on, choice));
  }
  const schedule::Shape shape{.stages = static_cast<int>(choice.stages.size()),
                              .micro_batches = choice.micro_batches,
                              .chunks = choice.chunks};
  return schedule::simulate(schedule::schedules(choice.schedule, shape), piece_costs(on, choice));
}

}  // namespace bimetal::plan
