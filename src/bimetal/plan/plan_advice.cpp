#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "bimetal/plan/plan.h"

namespace bimetal::plan {
namespace {

class Adviser {
 public:
  Adviser(const PlanInput& input, const Plan& plan) : input_(input), plan_(plan) {}

  std::string text() const {
    std::vector<std::string> lines;
    if (plan_.predictions.size() == 1) {
      lines = only_one();
    } else {
      lines = plan_.chosen().way == Way::Alone     ? use_one()
              : plan_.chosen().way == Way::Servers ? use_servers()
                                                   : share();
      if (plan_.chosen().way != Way::Servers && input_.servers > 0) lines.push_back(of_servers());
    }
    for (const int rank : plan_.unusable) {
      lines.push_back(
          fmt::format("{} can't hold this model: not even its smallest batch fits into its memory.",
                      name(rank)));
    }
    return fmt::format("{}", fmt::join(lines, "\n"));
  }

 private:
  std::vector<std::string> only_one() const {
    const Prediction& alone = plan_.chosen();
    return {fmt::format("Only {} can work on this job: there is nothing to share. A step will take "
                        "{}: {:.0f} {}/s.",
                        name(alone.ranks[0]), seconds_text(alone.step_s), alone.samples_per_s,
                        input_.counts),
            "List more workers with --worker to compare."};
  }

  std::vector<std::string> use_one() const {
    const Prediction& alone = plan_.chosen();
    const Prediction& shared = balanced_over_all();
    std::vector<std::string> lines = {fmt::format("Use {} alone: {} a step, {:.0f} {}/s.",
                                                  name(alone.ranks[0]), seconds_text(alone.step_s),
                                                  alone.samples_per_s, input_.counts)};
    lines.push_back(
        shared.step_s > alone.step_s * (1 + kWorthwhile)
            ? fmt::format("Adding {} would slow each step by {} ({:.0f} %): {}.",
                          names(missing(alone)), seconds_text(shared.step_s - alone.step_s),
                          percent(shared.step_s, alone.step_s), why(alone, shared))
            : fmt::format("Adding {} would change the time of a step by less than {:.0f} %: {}.",
                          names(missing(alone)), 100 * kWorthwhile, why(alone, shared)));
    lines.push_back(when_sharing_pays());
    return lines;
  }

  // Sharing gains computing time and costs communication: which of the two decides?
  std::string why(const Prediction& alone, const Prediction& shared) const {
    const double saved = alone.compute_s - shared.compute_s;
    if (saved < kWorthwhile * alone.compute_s) return "the others are too slow to take work off it";
    return fmt::format(
        "sharing saves {} of computing, but exchanging {:.1f} MB of gradients adds {}",
        seconds_text(saved), gradient_megabytes(), seconds_text(shared.communicate_s));
  }

  std::string when_sharing_pays() const {
    std::vector<std::string> cases;
    if (plan_.crossover_batch) {
      cases.push_back(fmt::format("with a global batch of {} or more", *plan_.crossover_batch));
    }
    if (plan_.crossover_bytes_per_s) {
      cases.push_back(fmt::format("over a link of {} or more (this one has {})",
                                  link_text(*plan_.crossover_bytes_per_s),
                                  link_text(input_.link.bytes_per_s)));
    }
    if (cases.empty()) return "Sharing this model would pay at no batch size and over no link.";
    return fmt::format("Sharing would pay {}.", fmt::join(cases, ", or "));
  }

  std::vector<std::string> share() const {
    const Prediction& best = plan_.chosen();
    const Prediction& alone = fastest_alone();
    const Prediction& equal = of_way(Way::Equal);
    std::vector<std::string> lines = {fmt::format(
        "Share the work over {}, balanced ({} {}): {} a step, {:.0f} {}/s, {:.2f} times what {} "
        "does alone.",
        names(best.ranks), fmt::join(best.shares, " : "), input_.counts, seconds_text(best.step_s),
        best.samples_per_s, input_.counts, alone.step_s / best.step_s, name(alone.ranks[0]))};
    if (best.ranks.size() < balanced_over_all().ranks.size()) {
      lines.push_back(fmt::format("Leave {} out: with all, a step would take {}.",
                                  names(missing(best)), seconds_text(balanced_over_all().step_s)));
    }
    lines.push_back(equal.step_s > best.step_s * (1 + kWorthwhile)
                        ? fmt::format("An equal split would take {} a step, {:.0f} % longer.",
                                      seconds_text(equal.step_s),
                                      percent(equal.step_s, best.step_s))
                        : "An equal split would be about as fast.");
    if (plan_.crossover_batch.value_or(1) > 1) {
      lines.push_back(fmt::format("With a global batch below {}, {} alone would be as fast.",
                                  *plan_.crossover_batch, name(alone.ranks[0])));
    }
    return lines;
  }

  std::vector<std::string> use_servers() const {
    const Prediction& best = plan_.chosen();
    const Prediction& alone = fastest_alone();
    return {
        fmt::format("Share the work over {} through {} (parallel.mode = \"server\"), balanced ({} "
                    "{}): {} a step, {:.0f} {}/s, {:.2f} times what {} does alone.",
                    names(best.ranks), servers(input_.servers), fmt::join(best.shares, " : "),
                    input_.counts, seconds_text(best.step_s), best.samples_per_s, input_.counts,
                    alone.step_s / best.step_s, name(alone.ranks[0])),
        fmt::format("Reducing gradients among the workers would take {} a step, {:.0f} % longer.",
                    seconds_text(balanced_over_all().step_s),
                    percent(balanced_over_all().step_s, best.step_s))};
  }

  // Whether the other way to train together would be better.
  std::string of_servers() const {
    const double with_servers = of_way(Way::Servers).step_s;
    const double chosen = plan_.chosen().step_s;
    std::string text =
        with_servers > chosen * (1 + kWorthwhile)
            ? fmt::format("Through {} a step would take {}, {:.0f} % longer",
                          servers(input_.servers), seconds_text(with_servers),
                          percent(with_servers, chosen))
            : fmt::format("Through {} a step would take about as long, and workers may come and go",
                          servers(input_.servers));
    if (plan_.crossover_servers.value_or(0) > input_.servers) {
      text += fmt::format(
          "; from {} on, each on a link of its own, it would be shorter than by reducing",
          servers(*plan_.crossover_servers));
    }
    return text + ".";
  }

  static std::string servers(int count) {
    return count == 1 ? "a parameter server" : fmt::format("{} parameter servers", count);
  }

  const Prediction& of_way(Way way) const {
    return *std::ranges::find(plan_.predictions, way, &Prediction::way);
  }
  // The first balanced one is that of all workers.
  const Prediction& balanced_over_all() const { return of_way(Way::Balanced); }

  const Prediction& fastest_alone() const {
    const auto end =
        std::ranges::find_if(plan_.predictions, [](const auto& p) { return p.way != Way::Alone; });
    return *std::min_element(plan_.predictions.begin(), end,
                             [](const auto& a, const auto& b) { return a.step_s < b.step_s; });
  }

  std::vector<int> missing(const Prediction& prediction) const {
    std::vector<int> ranks = balanced_over_all().ranks;
    std::erase_if(ranks, [&](int rank) {
      return std::ranges::find(prediction.ranks, rank) != prediction.ranks.end();
    });
    return ranks;
  }

  // Two workers may be of the same kind.
  std::string name(int rank) const {
    const auto& own = input_.workers[static_cast<std::size_t>(rank)].name;
    const auto alike = std::ranges::count(input_.workers, own, &PlanWorker::name);
    return alike == 1 ? own : fmt::format("{} (rank {})", own, rank);
  }

  std::string names(const std::vector<int>& ranks) const {
    std::vector<std::string> result;
    for (const int rank : ranks) result.push_back(name(rank));
    const std::string last = result.back();
    result.pop_back();
    return result.empty() ? last : fmt::format("{} and {}", fmt::join(result, ", "), last);
  }

  double gradient_megabytes() const { return 1e-6 * static_cast<double>(input_.gradient_bytes()); }

  static double percent(double longer, double shorter) { return 100 * (longer / shorter - 1); }

  const PlanInput& input_;
  const Plan& plan_;
};

}  // namespace

std::string advice(const PlanInput& input, const Plan& plan) {
  return Adviser(input, plan).text();
}

std::string operations_text(double operations) {
  if (operations >= 1e15) return fmt::format("{:.3g} PFLOP", 1e-15 * operations);
  if (operations >= 1e12) return fmt::format("{:.3g} TFLOP", 1e-12 * operations);
  if (operations >= 1e9) return fmt::format("{:.3g} GFLOP", 1e-9 * operations);
  return fmt::format("{:.3g} MFLOP", 1e-6 * operations);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} µs", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string link_text(double bytes_per_s) {
  const double megabits = bytes_per_s * 8e-6;
  if (megabits < 1000) return fmt::format("{:.0f} Mbit/s", megabits);
  return fmt::format("{:.1f} Gbit/s", megabits * 1e-3);
}

}  // namespace bimetal::plan
