#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/mesh/tensor_groups.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

constexpr int kMostLevelInterleaved = 1;  // of ZeRO, as job/combinations.cpp has it

/// In a box a replica goes through all stages: one share for each, by its slowest stage. Else each
/// stage deals its own.
void deal(const MeshInput& input, const ByReplica& speeds, MeshChoice& choice) {
  if (!choice.even) return deal_by_speed(speeds, input.global_batch, choice);
  auto through = speeds.front();
  for (std::size_t r = 0; r < through.size(); ++r) {
    for (const auto& stage : speeds) through[r] = std::min(through[r], stage[r]);
  }
  for (auto& stage : choice.stages) {
    stage.samples = balance::weighted_shares(through, input.global_batch);
  }
}

class Chooser {
 public:
  Chooser(const MeshProblem& on, const Layout& layout, const PipelineOptions& options)
      : on_(on), layout_(layout), options_(options) {
    choice_.scheme = Scheme::Pipeline;
    choice_.keeping = options.keeping;
    choice_.schedule = options.schedule;
    choice_.chunks = options.chunks;
    choice_.micro_batches = options.micro_batches;
    choice_.even = is_box(on.cluster, layout);
    for (const auto& devices : layout) choice_.stages.push_back({.devices = devices});
  }

  std::optional<MeshChoice> choose() {
    if (!is_possible()) return std::nullopt;
    deal(on_.input, whole_speeds(), choice_);
    if (!worth_while()) return std::nullopt;
    if (!cut()) return std::nullopt;
    const bool replicas =
        std::ranges::any_of(layout_, [](const auto& stage) { return stage.size() > 1; });
    // Only now is it known which stage of a replica is the slowest.
    if (replicas) {
      deal(on_.input, stage_speeds(), choice_);
      if (!worth_while() || !cut()) return std::nullopt;
    }
    return choice_;
  }

 private:
  std::size_t units() const { return on_.units(); }

  /// Interleaved goes in rounds, in which each stage has one replica at a time.
  bool is_possible() const {
    if (units() < layout_.size() * static_cast<std::size_t>(options_.chunks)) return false;
    if (options_.schedule != schedule::Kind::interleaved) return true;
    return choice_.even && options_.micro_batches % std::ssize(layout_) == 0;
  }

  /// Samples a second of what `work` says of each stage.
  template <typename Work>
  ByReplica speeds_of(const Work& work) const {
    const bool recomputed = options_.keeping.recomputed_at_once > 0;
    ByReplica speeds;
    for (const auto& stage : choice_.stages) {
      auto& row = speeds.emplace_back();
      for (const int device : stage.devices) {
        const auto own = passes_of(on_, device, work(stage), 1, recomputed);
        row.push_back(1 / std::max(1e-12, own.forward + own.backward));
      }
    }
    return speeds;
  }

  ByReplica whole_speeds() const {
    return speeds_of([this](const MeshStage&) { return UnitRange{0, units()}; });
  }

  ByReplica stage_speeds() const {
    return speeds_of([](const MeshStage& stage) -> const MeshStage& { return stage; });
  }

  /// A device without a sample, or with fewer than micro-batches, would be of no use.
  bool worth_while() const {
    const bool box = choice_.even;
    if (!box && on_.input.global_batch < choice_.micro_batches) return false;
    for (const auto& stage : choice_.stages) {
      for (const auto samples : stage.samples) {
        if (samples < (box ? choice_.micro_batches : 1)) return false;
        const auto whole = box ? samples : on_.input.global_batch;
        const auto at_once = (whole + choice_.micro_batches - 1) / choice_.micro_batches;
        const auto limit = options_.any_size ? 0 : on_.input.micro_batch;
        if (limit > 0 && at_once > limit) return false;
      }
    }
    return true;
  }

  std::vector<std::size_t> best_begins() const {
    auto problem = cut_problem(on_, choice_);
    try {
      return schedule::cut(problem).begins;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::OutOfMemory) throw;
      problem.fitting = {};
      return schedule::cut(problem).begins;
    }
  }

  std::vector<std::size_t> given_begins() const {
    std::vector<std::size_t> begins = {0};
    begins.insert(begins.end(), options_.cuts.begin(), options_.cuts.end());
    return begins;
  }

  bool cut() {
    const auto begins = options_.cuts.empty() ? best_begins() : given_begins();
    const auto pieces = layout_.size() * static_cast<std::size_t>(options_.chunks);
    const bool rising = std::ranges::adjacent_find(begins, std::greater_equal()) == begins.end();
    if (begins.size() != pieces || !rising || begins.back() >= units()) return false;
    choice_.take_pieces(begins, units());
    return true;
  }

  const MeshProblem on_;
  const Layout& layout_;
  const PipelineOptions& options_;
  MeshChoice choice_;
};

}  // namespace

std::vector<int> micro_batch_counts(int in_line, std::int64_t most) {
  std::vector<int> counts = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  for (const int factor : {1, 2, 3, 4, 6, 8}) counts.push_back(factor * in_line);
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  std::erase_if(counts, [most](int count) { return count > most; });
  return counts;
}

std::vector<WayThrough> ways_worth_a_try(const Cluster& cluster, const Keeping& keeping,
                                         const Layout& layout, std::size_t units) {
  using schedule::Kind;
  // All forwards first keep every activation, but wait for slow links less often.
  std::vector<WayThrough> ways = {{Kind::one_f_one_b}, {Kind::gpipe}};
  // Recomputed activations would be computed for each part of a backward.
  if (keeping.recomputed_at_once == 0) ways.push_back({Kind::zero_bubble});
  if (keeping.level > kMostLevelInterleaved || !is_box(cluster, layout)) return ways;
  for (const int chunks : {2, 4}) {
    const auto pieces = layout.size() * static_cast<std::size_t>(chunks);
    if (pieces <= units) ways.push_back({Kind::interleaved, chunks});
  }
  return ways;
}

std::optional<MeshChoice> choose_cut(const MeshProblem& on, const Layout& layout,
                                     const PipelineOptions& options) {
  auto choice = Chooser(on, layout, options).choose();
  if (!choice) return std::nullopt;
  auto costs = piece_costs(on, *choice);
  const auto slowness = slowness_of(on, *choice);
  for (std::size_t s = 0; !choice->even && s < costs.size(); ++s) {
    const double shared = shared_seconds(slowness[s]);
    costs[s].forward *= shared;
    costs[s].backward_input *= shared;
    costs[s].backward_weight *= shared;
  }
  const auto behind = exchanges(on, *choice);
  const auto own_updates = updates(on, *choice);
  const auto stages = choice->stages.size();
  for (std::size_t s = 0; s < stages; ++s) {
    double pass = 0;
    for (auto piece = s; piece < costs.size(); piece += stages) {
      const auto& cost = costs[piece];
      pass += cost.forward + cost.backward_input + cost.backward_weight;
    }
    choice->compute_s = std::max(choice->compute_s, choice->micro_batches * pass + own_updates[s]);
  }
  choice->sent_s = *std::ranges::max_element(behind);
  choice->step_s = schedule::plain_bound(costs, choice->micro_batches, stages) + choice->sent_s +
                   std::ranges::max(own_updates);
  choice->waiting_s = choice->step_s - choice->compute_s;
  take_memory(on, *choice);
  return choice;
}

void take_memory(const MeshProblem& on, MeshChoice& choice) {
  std::vector<double> needed;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    const auto loads = loads_of(on, choice, s);
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      const auto& facts = on.facts_of(stage.devices[r]);
      needed.push_back(stage_use(facts, stage.pieces, loads[r]).model());
    }
  }
  choice.take_peaks(on.cluster, needed);
}

MeshChoice simulated(const MeshProblem& on, MeshChoice choice) {
  auto run = run_of(on, choice);
  const auto behind = exchanges(on, choice);
  const auto own_updates = updates(on, choice);
  choice.step_s = 0;
  std::size_t list = 0;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const std::size_t lists = choice.even ? 1 : choice.stages[s].devices.size();
    for (const std::size_t last = list + lists; list < last; ++list) {
      const double end = run.stages[list].empty() ? 0 : run.stages[list].back().end;
      choice.step_s = std::max(choice.step_s, end + behind[s] + own_updates[s]);
      run.busy[list] += own_updates[s];
    }
  }
  const double busy = std::accumulate(run.busy.begin(), run.busy.end(), 0.0);
  choice.compute_s = *std::ranges::max_element(run.busy);
  choice.waiting_s = choice.step_s - choice.compute_s;
  choice.bubble = 1 - busy / (choice.step_s * static_cast<double>(run.stages.size()));
  return choice;
}

// Pipelines of neighbours whose number of parts of tensors differs by stage.

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
