#include "bimetal/plan/mesh/pipeline_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/plan/mesh/stage_memory.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

using Weights = std::vector<std::vector<double>>;  // [stage][replica]

const ModelFacts& facts_of(const MeshInput& input, const Cluster& cluster, int device) {
  return input.facts[cluster.device(device).facts];
}

/// Forward and backward of the units [begin, end), of so many samples at once.
struct Passes {
  double forward = 0, backward = 0;
};

Passes passes_of(const MeshInput& input, const Cluster& cluster, int device, std::size_t begin,
                 std::size_t end, double samples, bool recomputed) {
  const auto& units = facts_of(input, cluster, device).units;
  Passes passes;
  for (std::size_t u = begin; u < end; ++u) {
    const double forward = units[u].forward_s.at(samples);
    passes.forward += forward;
    passes.backward += units[u].backward_s.at(samples) + (recomputed ? forward : 0);
  }
  const double slower = cluster.device(device).slower;
  return {passes.forward * slower, passes.backward * slower};
}

bool is_box(const Layout& layout) {
  return std::ranges::all_of(
      layout, [&](const auto& stage) { return stage.size() == layout.front().size(); });
}

/// In a box a replica goes through all stages: one share for each, by its slowest stage. Else each
/// stage deals its own.
void deal(const MeshInput& input, const Layout& layout, const Weights& speeds, MeshChoice& choice) {
  const auto replicas = layout.front().size();
  std::vector<double> through(replicas, 0);
  if (is_box(layout)) {
    for (std::size_t r = 0; r < replicas; ++r) {
      through[r] = speeds.front()[r];
      for (const auto& stage : speeds) through[r] = std::min(through[r], stage[r]);
    }
  }
  for (std::size_t s = 0; s < layout.size(); ++s) {
    choice.stages[s].samples =
        balance::weighted_shares(is_box(layout) ? through : speeds[s], input.global_batch);
  }
}

/// Samples of a micro-batch that a replica computes; of those that it has at all, one at least.
double at_once(const MeshChoice& choice, std::size_t stage, std::size_t replica) {
  const auto samples = choice.stages[stage].samples[replica];
  return samples == 0 ? 0 : std::max(1.0, static_cast<double>(samples) / choice.micro_batches);
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
    deal(input_, layout_, whole_speeds(units), choice_);
    if (!worth_while()) return std::nullopt;
    if (!cut()) return std::nullopt;
    const bool replicas =
        std::ranges::any_of(layout_, [](const auto& stage) { return stage.size() > 1; });
    // What a replica's slowest stage is, is known only now.
    if (replicas) {
      deal(input_, layout_, stage_speeds(), choice_);
      if (!worth_while() || !cut()) return std::nullopt;
    }
    return choice_;
  }

 private:
  bool recomputed() const { return options_.keeping.recomputed_at_once > 0; }

  /// Samples a second, as far as the whole model goes.
  Weights whole_speeds(std::size_t units) const {
    Weights speeds;
    for (const auto& stage : layout_) {
      auto& row = speeds.emplace_back();
      for (const int device : stage) {
        const auto all = passes_of(input_, cluster_, device, 0, units, 1, recomputed());
        row.push_back(1 / std::max(1e-12, all.forward + all.backward));
      }
    }
    return speeds;
  }

  Weights stage_speeds() const {
    Weights speeds;
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
    for (const auto& stage : choice_.stages) {
      for (const auto samples : stage.samples) {
        if (samples < choice_.micro_batches) return false;
        const auto at_once = (samples + choice_.micro_batches - 1) / choice_.micro_batches;
        if (input_.micro_batch > 0 && at_once > input_.micro_batch) return false;
      }
    }
    return true;
  }

  bool cut() {
    auto problem = cut_problem();
    std::vector<std::size_t> begins;
    try {
      begins = schedule::cut(problem).begins;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::OutOfMemory) throw;
      problem.bytes.clear();
      problem.memory.clear();
      begins = schedule::cut(problem).begins;
    }
    const auto units = input_.facts.front().units.size();
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
      auto& bytes = problem.bytes.emplace_back(units, 0.0);
      double memory = std::numeric_limits<double>::infinity();
      for (std::size_t r = 0; r < layout_[s].size(); ++r) {
        const int device = layout_[s][r];
        const auto load = load_of(s, r);
        for (std::size_t u = 0; u < units; ++u) {
          const auto unit =
              passes_of(input_, cluster_, device, u, u + 1, load.at_once, recomputed());
          seconds[u] = std::max(seconds[u], unit.forward + unit.backward);
          bytes[u] = std::max(bytes[u], unit_bytes(facts_of(input_, cluster_, device), u, load));
        }
        memory = std::min(memory, cluster_.device(device).memory_bytes -
                                      passing_bytes(facts_of(input_, cluster_, device), load));
      }
      problem.memory.push_back(std::max(0.0, memory));
    }
    problem.send = sends(units);
    return problem;
  }

  StageLoad load_of(std::size_t stage, std::size_t replica) const {
    return {.replicas = static_cast<double>(layout_[stage].size()),
            .at_once = at_once(choice_, stage, replica),
            .in_flight = in_flight(choice_.schedule, stage, layout_.size(), choice_.micro_batches),
            .keeping = options_.keeping};
  }

  /// Which stages a cut lies between is not known yet: the slowest link counts.
  std::vector<double> sends(std::size_t units) const {
    std::vector<double> seconds(units, 0.0);
    std::map<std::pair<double, double>, double> known;  // most units give as much
    for (std::size_t u = 0; u + 1 < units; ++u) {
      const auto& output = input_.facts.front().units[u].output;
      const auto [place, fresh] = known.try_emplace({output.fixed, output.per_sample}, 0.0);
      for (std::size_t s = 0; fresh && s + 1 < layout_.size(); ++s) {
        const auto [forward, backward] = crossing(input_, cluster_, choice_, s, u);
        place->second = std::max(place->second, forward + backward);
      }
      seconds[u] = place->second;
    }
    return seconds;
  }

 public:
  /// Seconds in which what unit `last` gives crosses from a stage to the next, and its gradient
  /// back.
  static std::pair<double, double> crossing(const MeshInput& input, const Cluster& cluster,
                                            const MeshChoice& choice, std::size_t stage,
                                            std::size_t last) {
    const auto& from = choice.stages[stage];
    const auto& to = choice.stages[stage + 1];
    std::vector<int> senders, receivers;
    std::vector<double> bytes;
    const auto most = std::max(from.devices.size(), to.devices.size());
    for (std::size_t i = 0; i < most; ++i) {
      // Unequal numbers of replicas: each of the more has a peer among the fewer.
      const auto f = i % from.devices.size(), t = i % to.devices.size();
      const bool more = from.devices.size() >= to.devices.size();
      const double samples = more ? at_once(choice, stage, f) : at_once(choice, stage + 1, t);
      senders.push_back(from.devices[f]);
      receivers.push_back(to.devices[t]);
      bytes.push_back(facts_of(input, cluster, senders.back()).units[last].output.at(samples));
    }
    return {cluster.send_seconds(senders, receivers, bytes),
            cluster.send_seconds(receivers, senders, bytes)};
  }

 private:
  const MeshInput& input_;
  const Cluster& cluster_;
  const Layout& layout_;
  const PipelineOptions& options_;
  MeshChoice choice_;
};

/// What the replicas of each stage, and the stages that share parameters, exchange behind it.
std::vector<double> exchanges(const MeshInput& input, const Cluster& cluster,
                              const MeshChoice& choice) {
  std::vector<double> seconds;
  for (const auto& stage : choice.stages) {
    const auto& facts = facts_of(input, cluster, stage.devices.front());
    double elements = 0;
    for (std::size_t u = stage.begin; u < stage.end; ++u) {
      elements += static_cast<double>(facts.units[u].elements());
    }
    seconds.push_back(cluster.all_reduce_seconds(stage.devices, elements * facts.element_bytes));
  }
  // A tensor that several units use is summed between the first and the last stage.
  const auto& facts = input.facts.front();
  double shared = 0;
  for (const auto& unit : facts.units) shared += static_cast<double>(unit.shared);
  if (shared > 0 && choice.stages.size() > 1) {
    const std::vector<int> ends = {choice.stages.front().devices.front(),
                                   choice.stages.back().devices.front()};
    const double tied = cluster.all_reduce_seconds(ends, shared * facts.element_bytes);
    seconds.front() += tied;
    seconds.back() += tied;
  }
  return seconds;
}

}  // namespace

std::vector<schedule::PieceCost> stage_costs(const MeshInput& input, const Cluster& cluster,
                                             const MeshChoice& choice) {
  std::vector<schedule::PieceCost> costs;
  const bool recomputed = choice.keeping.recomputed_at_once > 0;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    schedule::PieceCost cost{.forward = 0, .backward_input = 0, .backward_weight = 0};
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      const auto passes = passes_of(input, cluster, stage.devices[r], stage.begin, stage.end,
                                    at_once(choice, s, r), recomputed);
      cost.forward = std::max(cost.forward, passes.forward);
      cost.backward_input = std::max(cost.backward_input, passes.backward / 2);
      cost.backward_weight = std::max(cost.backward_weight, passes.backward / 2);
    }
    if (s + 1 < choice.stages.size()) {
      cost.send_forward = Chooser::crossing(input, cluster, choice, s, stage.end - 1).first;
    }
    if (s > 0) {
      const auto before = choice.stages[s - 1].end - 1;
      cost.send_backward = Chooser::crossing(input, cluster, choice, s - 1, before).second;
    }
    costs.push_back(cost);
  }
  return costs;
}

std::optional<MeshChoice> choose_cut(const MeshInput& input, const Cluster& cluster,
                                     const Layout& layout, const PipelineOptions& options) {
  auto choice = Chooser(input, cluster, layout, options).choose();
  if (!choice) return std::nullopt;
  const auto costs = stage_costs(input, cluster, *choice);
  const auto behind = exchanges(input, cluster, *choice);
  for (const auto& cost : costs) {
    choice->compute_s = std::max(
        choice->compute_s,
        choice->micro_batches * (cost.forward + cost.backward_input + cost.backward_weight));
  }
  choice->sent_s = *std::ranges::max_element(behind);
  choice->step_s = schedule::plain_bound(costs, choice->micro_batches) + choice->sent_s;
  choice->waiting_s = choice->step_s - choice->compute_s;
  take_memory(input, cluster, *choice);
  return choice;
}

void take_memory(const MeshInput& input, const Cluster& cluster, MeshChoice& choice) {
  choice.peak_bytes.clear();
  choice.missing_bytes = 0;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      const StageLoad load{
          .replicas = static_cast<double>(stage.devices.size()),
          .at_once = at_once(choice, s, r),
          .in_flight = in_flight(choice.schedule, s, choice.stages.size(), choice.micro_batches),
          .keeping = choice.keeping};
      const auto& facts = facts_of(input, cluster, stage.devices[r]);
      choice.peak_bytes.push_back(stage_bytes(facts, stage.begin, stage.end, load));
      const double missing =
          choice.peak_bytes.back() - cluster.device(stage.devices[r]).memory_bytes;
      if (missing <= choice.missing_bytes) continue;
      choice.missing_bytes = missing;
      choice.missing_on = stage.devices[r];
    }
  }
}

MeshChoice simulated(const MeshInput& input, const Cluster& cluster, MeshChoice choice) {
  const auto run = run_of(input, cluster, choice);
  const auto behind = exchanges(input, cluster, choice);
  choice.step_s = 0;
  for (std::size_t s = 0; s < run.stages.size(); ++s) {
    const double end = run.stages[s].empty() ? 0 : run.stages[s].back().end;
    choice.step_s = std::max(choice.step_s, end + behind[s]);
  }
  const double busy = std::accumulate(run.busy.begin(), run.busy.end(), 0.0);
  choice.compute_s = *std::ranges::max_element(run.busy);
  choice.waiting_s = choice.step_s - choice.compute_s;
  choice.bubble = 1 - busy / (choice.step_s * static_cast<double>(run.stages.size()));
  return choice;
}

}  // namespace bimetal::plan
