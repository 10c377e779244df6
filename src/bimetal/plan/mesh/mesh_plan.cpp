#include "bimetal/plan/mesh/mesh_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/dealt.h"
#include "bimetal/plan/mesh/layouts.h"
#include "bimetal/plan/mesh/mesh_advice.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/mesh/tensor_groups.h"
#include "bimetal/plan/mesh/tensor_parts.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr std::ptrdiff_t kMostPipelines = 3;  // in a list of the best
constexpr std::ptrdiff_t kMostInParts = 2;    // likewise
constexpr int kMostParts = 8;
constexpr int kEveryNumber = 16;  // devices; of more, numbers of parts are powers of two

void check(const MeshInput& input, const Cluster& cluster) {
  const auto refuse = [](const char* flaw) { throw Error(ErrorCode::InvalidArgument, flaw); };
  if (input.facts.empty() || input.facts.front().units.empty()) {
    refuse("a plan needs the facts of a model of one unit or more");
  }
  for (const auto& facts : input.facts) {
    if (facts.units.size() != input.facts.front().units.size()) {
      refuse("the facts of a plan must be of one model");
    }
  }
  for (const auto& device : cluster.devices()) {
    if (device.facts >= input.facts.size()) refuse("a device's facts are not there");
  }
  if (input.global_batch < 1) refuse("a plan needs a global batch of at least 1");
}

/// With their tensors in parts: the same search among groups of devices.
void search_parts(const MeshInput& input, const Cluster& cluster, FoundMeshes& found) {
  int most = std::min(kMostParts, cluster.size());
  for (const auto& facts : input.facts) most = std::min(most, most_tensor_ranks(facts));
  const auto order = fastest_first(input, cluster);
  const auto search = [&](const Groups& groups, const std::vector<double>& weights) {
    const TensorGroups grouped(input, cluster, groups, weights);
    auto more = search_meshes(grouped.input(), grouped.cluster(),
                              std::min(input.most_level, input.level_in_parts));
    found.tried += more.tried;
    bool fits = false;
    for (auto& choice : more.choices) {
      found.choices.push_back(grouped.expanded(std::move(choice)));
      fits = fits || found.choices.back().fits();
    }
    return fits;
  };
  for (int tensor = 2; tensor <= most; ++tensor) {
    const bool power = (tensor & (tensor - 1)) == 0;
    if (cluster.size() > kEveryNumber && !power) continue;
    for (const auto& groups : groupings_of(cluster, order, static_cast<std::size_t>(tensor))) {
      const auto by_speed = parts_by_speed(input, cluster, groups);
      if (search(groups, by_speed)) continue;
      const auto by_memory = parts_by_memory(cluster, groups);
      if (by_memory != by_speed) search(groups, by_memory);
    }
  }
}

/// What is one kind of plan: of each the best is shown. With tensors in parts, of which few are,
/// the level is whichever is best.
auto kind_of_plan(const MeshChoice& choice) {
  const bool even = choice.even();
  const int level = choice.tensor > 1 ? 0 : choice.keeping.level;
  return std::tuple(choice.scheme, level, choice.stages.size(), even,
                    even && choice.replicas(0) > 1, choice.tensor);
}

bool has_parts(const MeshChoice& choice) {
  return choice.tensor > 1;
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
    const auto pipelines = std::ranges::count_if(list, [](const MeshChoice& other) {
      return !has_parts(other) && other.scheme == Scheme::Pipeline;
    });
    const bool room = has_parts(choice)                   ? parts < kMostInParts
                      : choice.scheme == Scheme::Pipeline ? pipelines < kMostPipelines
                                                          : true;
    const bool few = std::ssize(list) - parts < static_cast<std::ptrdiff_t>(most);
    // What one device does alone is what all others are compared with.
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

/// `devices`: those of a stage.
template <typename Stages, typename Devices>
bool as_many_in_each(const Stages& stages, Devices devices) {
  return std::ranges::all_of(stages, [&](const auto& stage) {
    return std::invoke(devices, stage).size() == std::invoke(devices, stages.front()).size();
  });
}

}  // namespace

bool is_box(const Layout& layout) {
  return as_many_in_each(layout, std::identity());
}

int in_line(const Layout& layout) {
  if (is_box(layout)) return static_cast<int>(layout.size());
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

int MeshChoice::devices() const {
  std::size_t count = 0;
  for (const auto& stage : stages) count += stage.devices.size();
  return static_cast<int>(count);
}

bool MeshChoice::even() const {
  return as_many_in_each(stages, &MeshStage::devices);
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

MeshPlan plan_mesh(const MeshInput& input, const Cluster& cluster, std::optional<AskedMesh> asked) {
  check(input, cluster);
  auto found = search_meshes(input, cluster, input.most_level);
  if (input.parts) search_parts(input, cluster, found);
  if (asked && asked->choice) found.choices.push_back(*asked->choice);
  auto plan = sort_out(std::move(found), input.most);
  plan.asked = std::move(asked);
  explain(cluster, plan);
  return plan;
}

schedule::Simulation run_of(const MeshInput& input, const Cluster& cluster,
                            const MeshChoice& choice) {
  if (choice.tensor > 1) {
    const auto [groups, of_groups] = groups_of(choice);
    const TensorGroups grouped(input, cluster, groups, choice.tensor_weights);
    return run_of(grouped.input(), grouped.cluster(), of_groups);
  }
  if (!choice.even()) {
    return run_dealt(choice, slowness_of(input, cluster, choice),
                     piece_costs(input, cluster, choice));
  }
  const schedule::Shape shape{.stages = static_cast<int>(choice.stages.size()),
                              .micro_batches = choice.micro_batches,
                              .chunks = choice.chunks};
  return schedule::simulate(schedule::schedules(choice.schedule, shape),
                            piece_costs(input, cluster, choice));
}

}  // namespace bimetal::plan
