#include "bimetal/plan/mesh/pipeline_choice.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/dealt.h"
#include "bimetal/plan/mesh/pipeline_costs.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

/// In a box a replica goes through all stages: one share for each, by its slowest stage. Else each
/// stage deals its own.
void deal(const MeshInput& input, const ByReplica& speeds, MeshChoice& choice) {
  if (!choice.even()) return deal_by_speed(speeds, input.global_batch, choice);
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
  Chooser(const MeshInput& input, const Cluster& cluster, const Layout& layout,
          const PipelineOptions& options)
      : input_(input), cluster_(cluster), layout_(layout), options_(options) {
    choice_.scheme = Scheme::Pipeline;
    choice_.keeping = options.keeping;
    choice_.schedule = options.schedule;
    choice_.micro_batches = options.micro_batches;
    for (const auto& devices : layout) choice_.stages.push_back({.devices = devices});
  }

  std::optional<MeshChoice> choose() {
    const auto units = input_.facts.front().units.size();
    if (units < layout_.size()) return std::nullopt;
    deal(input_, whole_speeds(units), choice_);
    if (!worth_while()) return std::nullopt;
    if (!cut()) return std::nullopt;
    const bool replicas =
        std::ranges::any_of(layout_, [](const auto& stage) { return stage.size() > 1; });
    // What a replica's slowest stage is, is known only now.
    if (replicas) {
      deal(input_, stage_speeds(), choice_);
      if (!worth_while() || !cut()) return std::nullopt;
    }
    return choice_;
  }

 private:
  bool recomputed() const { return options_.keeping.recomputed_at_once > 0; }

  /// Samples a second, as far as the whole model goes.
  ByReplica whole_speeds(std::size_t units) const {
    ByReplica speeds;
    for (const auto& stage : layout_) {
      auto& row = speeds.emplace_back();
      for (const int device : stage) {
        const auto all = passes_of(input_, cluster_, device, 0, units, 1, recomputed());
        row.push_back(1 / std::max(1e-12, all.forward + all.backward));
      }
    }
    return speeds;
  }

  ByReplica stage_speeds() const {
    ByReplica speeds;
    for (const auto& stage : choice_.stages) {
      auto& row = speeds.emplace_back();
      for (const int device : stage.devices) {
        const auto own =
            passes_of(input_, cluster_, device, stage.begin, stage.end, 1, recomputed());
        row.push_back(1 / std::max(1e-12, own.forward + own.backward));
      }
    }
    return speeds;
  }

  /// A device without a sample, or with fewer than micro-batches, would be of no use.
  bool worth_while() const {
    const bool box = choice_.even();
    if (!box && input_.global_batch < choice_.micro_batches) return false;
    for (const auto& stage : choice_.stages) {
      for (const auto samples : stage.samples) {
        if (samples < (box ? choice_.micro_batches : 1)) return false;
        const auto whole = box ? samples : input_.global_batch;
        const auto at_once = (whole + choice_.micro_batches - 1) / choice_.micro_batches;
        const auto limit = options_.any_size ? 0 : input_.micro_batch;
        if (limit > 0 && at_once > limit) return false;
      }
    }
    return true;
  }

  std::vector<std::size_t> best_begins() const {
    auto problem = cut_problem();
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
    const auto units = input_.facts.front().units.size();
    const auto begins = options_.cuts.empty() ? best_begins() : given_begins();
    const bool rising = std::ranges::adjacent_find(begins, std::greater_equal()) == begins.end();
    if (begins.size() != layout_.size() || !rising || begins.back() >= units) return false;
    for (std::size_t s = 0; s < begins.size(); ++s) {
      choice_.stages[s].begin = begins[s];
      choice_.stages[s].end = s + 1 < begins.size() ? begins[s + 1] : units;
    }
    return true;
  }

  schedule::CutProblem cut_problem() const {
    const auto units = input_.facts.front().units.size();
    schedule::CutProblem problem;
    problem.micro_batches = choice_.micro_batches;
    for (std::size_t s = 0; s < layout_.size(); ++s) {
      auto& seconds = problem.seconds.emplace_back(units, 0.0);
      const auto replicas = unlike_replicas(s);
      for (std::size_t u = 0; u < units; ++u) {
        std::vector<double> each;
        for (const auto& [device, samples] : replicas) {
          const auto unit = passes_of(input_, cluster_, device, u, u + 1, samples, recomputed());
          each.push_back(unit.forward + unit.backward);
        }
        seconds[u] = choice_.even() ? std::ranges::max(each) : shared_seconds(each);
      }
    }
    problem.send = sends(units);
    problem.fitting = [devices = unlike_devices()](std::size_t stage, std::size_t begin) {
      return fitting_ends(devices[stage], begin);
    };
    return problem;
  }

  struct Replica {
    int device;
    double samples;  ///< at once
  };
  /// Of a stage; where the slowest counts, of those that are alike one.
  std::vector<Replica> unlike_replicas(std::size_t stage) const {
    std::vector<Replica> found;
    std::set<std::tuple<std::size_t, double, double>> known;
    for (std::size_t r = 0; r < layout_[stage].size(); ++r) {
      const Replica own{layout_[stage][r], at_once(choice_, stage, r)};
      const auto& device = cluster_.device(own.device);
      const bool fresh = known.emplace(device.facts, device.slower, own.samples).second;
      if (fresh || !choice_.even()) found.push_back(own);
    }
    return found;
  }

  /// By stage; of replicas that are alike, one.
  std::vector<std::vector<StageDevice>> unlike_devices() const {
    std::vector<std::vector<StageDevice>> stages;
    for (std::size_t s = 0; s < layout_.size(); ++s) {
      auto& stage = stages.emplace_back();
      const auto shards = shards_by_memory(cluster_, layout_[s]);
      for (std::size_t r = 0; r < layout_[s].size(); ++r) {
        const int device = layout_[s][r];
        const StageDevice own{.facts = &facts_of(input_, cluster_, device),
                              .load = load_of(input_, choice_, s, r, shards[r]),
                              .room = cluster_.device(device).memory_bytes};
        if (std::ranges::find(stage, own) == stage.end()) stage.push_back(own);
      }
    }
    return stages;
  }

  /// By stage but the last, behind each unit.
  std::vector<std::vector<double>> sends(std::size_t units) const {
    std::vector<std::vector<double>> seconds;
    for (std::size_t s = 0; s + 1 < layout_.size(); ++s) {
      auto& of_stage = seconds.emplace_back(units, 0.0);
      std::map<std::pair<double, double>, double> known;  // most units give as much
      for (std::size_t u = 0; u + 1 < units; ++u) {
        const auto& output = input_.facts.front().units[u].output;
        const auto [place, fresh] = known.try_emplace({output.fixed, output.per_sample}, 0.0);
        if (fresh) {
          const auto [forward, backward] = crossing(input_, cluster_, choice_, s, u);
          place->second = forward + backward;
        }
        of_stage[u] = place->second;
      }
    }
    return seconds;
  }

  const MeshInput& input_;
  const Cluster& cluster_;
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

std::vector<schedule::Kind> schedules_worth_a_try(const Keeping& keeping) {
  using schedule::Kind;
  // All forwards first keep every activation, but wait for slow links less often.
  std::vector<Kind> kinds = {Kind::one_f_one_b, Kind::gpipe};
  // Where activations are computed again, they would be so for each part of a backward.
  if (keeping.recomputed_at_once == 0) kinds.push_back(Kind::zero_bubble);
  return kinds;
}

std::optional<MeshChoice> choose_cut(const MeshInput& input, const Cluster& cluster,
                                     const Layout& layout, const PipelineOptions& options) {
  auto choice = Chooser(input, cluster, layout, options).choose();
  if (!choice) return std::nullopt;
  auto costs = stage_costs(input, cluster, *choice);
  const auto slowness = slowness_of(input, cluster, *choice);
  for (std::size_t s = 0; !choice->even() && s < costs.size(); ++s) {
    const double shared = shared_seconds(slowness[s]);
    costs[s].forward *= shared;
    costs[s].backward_input *= shared;
    costs[s].backward_weight *= shared;
  }
  const auto behind = exchanges(input, cluster, *choice);
  const auto own_updates = updates(input, cluster, *choice);
  for (std::size_t s = 0; s < costs.size(); ++s) {
    const auto& cost = costs[s];
    const double pass = cost.forward + cost.backward_input + cost.backward_weight;
    choice->compute_s = std::max(choice->compute_s, choice->micro_batches * pass + own_updates[s]);
  }
  choice->sent_s = *std::ranges::max_element(behind);
  choice->step_s = schedule::plain_bound(costs, choice->micro_batches) + choice->sent_s +
                   std::ranges::max(own_updates);
  choice->waiting_s = choice->step_s - choice->compute_s;
  take_memory(input, cluster, *choice);
  return choice;
}

void take_memory(const MeshInput& input, const Cluster& cluster, MeshChoice& choice) {
  std::vector<double> needed;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    const auto shards = shards_by_memory(cluster, stage.devices);
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      needed.push_back(stage_bytes(facts_of(input, cluster, stage.devices[r]),
                                   {stage.begin, stage.end},
                                   load_of(input, choice, s, r, shards[r])));
    }
  }
  choice.take_peaks(cluster, needed);
}

MeshChoice simulated(const MeshInput& input, const Cluster& cluster, MeshChoice choice) {
  auto run = run_of(input, cluster, choice);
  const auto behind = exchanges(input, cluster, choice);
  const auto own_updates = updates(input, cluster, choice);
  choice.step_s = 0;
  std::size_t list = 0;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const std::size_t lists = choice.even() ? 1 : choice.stages[s].devices.size();
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

}  // namespace bimetal::plan
