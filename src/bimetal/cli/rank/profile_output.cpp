#include "bimetal/cli/rank/profile_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

constexpr std::size_t kMostRows = 25;

struct Steps {
  std::int64_t first = 0, last = 0;
};

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

Steps steps_of(const std::string& text) {
  const auto colon = std::min(text.find(':'), text.size());
  const auto first = whole_number(std::string_view(text).substr(0, colon)).value_or(0);
  const auto last =
      colon == text.size() ? 0 : whole_number(std::string_view(text).substr(colon + 1)).value_or(0);
  if (first < 1 || last < first) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("--profile {}: expected the first and the last step to be profiled, "
                            "as in 10:20; steps count from 1",
                            text));
  }
  return {first, last};
}

std::string time_text(double seconds) {
  if (seconds == 0) return "0";
  const auto size = std::abs(seconds);
  if (size < 1e-3) return fmt::format("{:.3f} us", 1e6 * seconds);
  if (size < 1) return fmt::format("{:.3f} ms", 1e3 * seconds);
  return fmt::format("{:.3f} s", seconds);
}

std::string share_text(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "–";
}

std::string signed_memory_text(std::int64_t bytes) {
  if (bytes == 0) return "0";
  const auto text = memory_text(static_cast<std::uint64_t>(std::abs(bytes)));
  return bytes < 0 ? "-" + text : text;
}

void print_rows(Terminal& terminal, const std::vector<TableRow>& rows) {
  bool head = true;
  for (const auto& line : aligned(rows, 1)) {
    terminal.print(std::exchange(head, false) ? terminal.coloured(Colour::bold, line) : line);
  }
}

void print_operations(Terminal& terminal, const train::Profile& profile) {
  double all = 0;
  bool on_device = false;
  for (const auto& row : profile.operations) {
    all += row.self_s + row.device_s;
    on_device = on_device || row.device_s > 0;
  }
  std::vector<TableRow> rows{
      {"operation", "self", "share", "total", "calls", "per call", "memory"}};
  if (on_device) rows.front().emplace_back("device");
  for (const auto& row : profile.operations) {
    if (rows.size() > kMostRows) break;
    const auto own = row.self_s + row.device_s;
    const auto per_call = (row.total_s + row.device_s) / static_cast<double>(row.calls);
    rows.push_back({row.name, time_text(row.self_s), share_text(own, all), time_text(row.total_s),
                    fmt::format("{}", row.calls), time_text(per_call),
                    signed_memory_text(row.bytes)});
    if (on_device) rows.back().push_back(time_text(row.device_s));
  }
  print_rows(terminal, rows);
  if (profile.operations.size() > kMostRows) {
    terminal.print(fmt::format("… and {} more", profile.operations.size() - kMostRows));
  }
}

void print_phases(Terminal& terminal, const train::Profile& profile) {
  const auto steps =
      static_cast<double>((profile.last_step - profile.first_step + 1) * profile.ranks);
  std::vector<TableRow> rows{{"phase", "time", "share", "per step and rank"}};
  for (const auto& [name, seconds] : profile.phases) {
    rows.push_back({name, time_text(seconds), share_text(seconds, profile.seconds),
                    time_text(seconds / steps)});
  }
  print_rows(terminal, rows);
}

void print_profile(Terminal& terminal, const train::Profile& profile) {
  terminal.clear();
  terminal.print(fmt::format("profile of steps {} to {}, summed over {} rank{}", profile.first_step,
                             profile.last_step, profile.ranks, profile.ranks == 1 ? "" : "s"));
  print_operations(terminal, profile);
  print_phases(terminal, profile);
  terminal.print(
      fmt::format("trace: {} (chrome://tracing, https://ui.perfetto.dev; clocks agree "
                  "to {})",
                  profile.trace.string(), time_text(profile.clock_error_s)));
}

}  // namespace

void require_profile(const std::string& steps, const job::JobConfig& job) {
  steps_of(steps);
  if (job.parallel.mode != "server") return;
  throw Error(ErrorCode::InvalidArgument,
              "--profile is for jobs that train by all-reduce: workers of parameter servers have "
              "no steps in common; set parallel.mode = \"all_reduce\"");
}

std::string trace_of(const std::string& named, const std::string& report,
                     const job::JobConfig& job) {
  if (!named.empty()) return named;
  const std::filesystem::path beside(report);
  if (!report.empty()) {
    return (beside.parent_path() / (beside.stem().string() + "_trace.json")).string();
  }
  return (std::filesystem::path(job.checkpoint.dir) / "trace.json").string();
}

train::ProfileRequest profile_request(const std::string& steps, const std::string& trace,
                                      Terminal& terminal) {
  const auto [first, last] = steps_of(steps);
  return {.first_step = first,
          .last_step = last,
          .trace = trace,
          .done = [&terminal](const train::Profile& profile) { print_profile(terminal, profile); }};
}

}  // namespace bimetal::cli
