#include "bimetal/progress/fastest_alone.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace bimetal::progress {
namespace {

// Parts of the time below this are not worth words.
constexpr double kNotable = 0.05;

/// The others wait for the rank that waits least.
const WorkerReport& least_waiting(const Report& report) {
  const WorkerReport* least = nullptr;
  for (const auto& worker : report.workers) {
    if (worker.samples == 0) continue;
    if (!least || worker.wait_s < least->wait_s) least = &worker;
  }
  return least ? *least : report.workers.front();
}

std::string waiting(const Report& report, const WorkerReport& fastest) {
  const auto part = fastest.wait_s / report.elapsed_s;
  if (part < kNotable) return fmt::format("waited for {:.0f} %", 100 * part);
  const auto& least = least_waiting(report);
  if (least.rank == fastest.rank || least.wait_s > fastest.wait_s / 2) {
    return fmt::format(
        "waited for {:.0f} %, as all did: for each other in turn, or for the exchange", 100 * part);
  }
  return fmt::format(
      "waited for {:.0f} %, most of all for rank {} with its {:.0f} % of the samples", 100 * part,
      least.rank, 100 * least.share);
}

/// Ranks that got nothing for a part of the run, by the history's shares.
std::string left_out(const Report& report) {
  std::string text;
  for (const auto& worker : report.workers) {
    const auto rank = static_cast<std::size_t>(worker.rank);
    const auto idle = std::ranges::count_if(report.history, [&](const HistoryPoint& point) {
      return rank < point.shares.size() && point.shares[rank] == 0;
    });
    if (report.history.empty()) break;
    const auto part = static_cast<double>(idle) / static_cast<double>(report.history.size());
    if (part < kNotable) continue;
    text += fmt::format("; rank {} had no samples in {:.0f} % of the steps", rank, 100 * part);
  }
  return text;
}

std::string where_time_went(const Report& report, const WorkerReport& fastest) {
  const auto computing = fastest.compute_s / report.elapsed_s;
  auto text = fmt::format("it computed for {:.0f} % of the time and {}", 100 * computing,
                          waiting(report, fastest));
  const auto rest = 1 - (fastest.compute_s + fastest.wait_s) / report.elapsed_s;
  if (rest >= kNotable) {
    text += fmt::format("; {:.0f} % went into neither (fetching batches, watching, the system)",
                        100 * rest);
  }
  text += left_out(report);
  if (report.balance && report.balance->policy != "auto") {
    text += fmt::format("; shares were {} by the job's parallel.balance, and did not follow speed",
                        report.balance->policy);
  }
  return text;
}

}  // namespace

std::optional<FastestAlone> fastest_alone(const Report& report) {
  // Who has a part of the model cannot be compared with the whole job.
  if (report.workers.size() < 2 || !(report.elapsed_s > 0) || report.mesh) return std::nullopt;
  const auto fastest =
      std::ranges::max_element(report.workers, {}, &WorkerReport::samples_per_s_alone);
  if (!(fastest->samples_per_s_alone > 0)) return std::nullopt;
  return FastestAlone{fastest->rank, fastest->samples_per_s_alone,
                      report.samples_per_s / fastest->samples_per_s_alone,
                      where_time_went(report, *fastest)};
}

}  // namespace bimetal::progress
