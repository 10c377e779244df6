#include "bimetal/cli/watch/top_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string_view>

#include "bimetal/cli/terminal.h"
#include "bimetal/progress/clock_text.h"

namespace bimetal::cli {
namespace {

constexpr const char* kNotKnown = "–";
// Of a job that goes on, however slowly: longer than most steps take.
constexpr double kLongStep = 10.0;

/// Escape sequences of a stranger's could do anything to the terminal.
std::string printable(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) ++i;
    out += c1 || byte < 0x20 || byte == 0x7f ? '?' : text[i];
  }
  return out;
}

template <typename Value>
std::string text_or_unknown(const char* format, const std::optional<Value>& value) {
  return value ? fmt::format(fmt::runtime(format), *value) : kNotKnown;
}

std::string part_text(const std::optional<double>& part, int digits = 1) {
  return part ? fmt::format("{:.{}f} %", 100 * *part, digits) : kNotKnown;
}

std::string bytes_text(const std::optional<double>& bytes_per_s) {
  constexpr std::array<const char*, 5> kUnits = {"B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"};
  if (!bytes_per_s) return kNotKnown;
  double value = *bytes_per_s;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, unit > 0 && value < 100 ? 1 : 0, kUnits[unit]);
}

std::string progress_of(const monitor::Status& status) {
  auto line = printable(status.phase);
  if (status.step == 0) return line;
  line += fmt::format("  epoch {}/{}  step {}/{}", status.epoch, status.epochs, status.step,
                      status.steps);
  if (status.loss) line += fmt::format("  loss {:.4f}", *status.loss);
  if (status.seconds_left)
    line += fmt::format("  {} left", progress::clock_text(*status.seconds_left));
  if (status.since_step_s.value_or(0) > kLongStep) {
    line += fmt::format("  no step for {}", progress::clock_text(*status.since_step_s));
  }
  return line;
}

std::string rates_of(const monitor::Status& status) {
  auto line = fmt::format("{} {}/s  efficiency {}", text_or_unknown("{:.0f}", status.samples_per_s),
                          printable(status.counts), part_text(status.efficiency, 0));
  if (status.schedule && status.micro_batches) {
    line += fmt::format("  {} × {} micro-batch{}", printable(*status.schedule),
                        *status.micro_batches, *status.micro_batches == 1 ? "" : "es");
  }
  for (const auto& metric : status.validation_metrics) {
    line += fmt::format("  {} {}", progress::label_of(metric, progress::kValidationData),
                        progress::text_of(metric));
  }
  for (const auto& metric : status.test_metrics) {
    line += fmt::format("  {} {}", progress::label_of(metric), progress::text_of(metric));
  }
  if (status.test_loss) line += fmt::format("  test loss {:.4f}", *status.test_loss);
  return line;
}

/// What only some jobs have.
struct Columns {
  bool stage, staleness;
};

Columns columns_of(const monitor::Status& status) {
  const auto any = [&](auto member) {
    return std::ranges::any_of(status.workers,
                               [&](const auto& worker) { return (worker.*member).has_value(); });
  };
  return {any(&monitor::WorkerStatus::stage), any(&monitor::WorkerStatus::staleness_max)};
}

TableRow heading(const monitor::Status& status, const Columns& columns) {
  TableRow row = {"rank",
                  "worker",
                  "share",
                  "of batch",
                  printable(status.counts) + "/s",
                  "alone",
                  columns.stage ? "bubble" : "waiting",
                  "sent"};
  if (columns.stage) row.insert(row.begin() + 2, "stage");
  if (columns.staleness) row.insert(row.end(), {"staleness", "most"});
  return row;
}

/// "1 of 3, replica 0".
std::string stage_text(const monitor::WorkerStatus& worker) {
  constexpr std::string_view kWord = "stage ";
  if (!worker.stage) return kNotKnown;
  return printable(worker.stage->starts_with(kWord) ? worker.stage->substr(kWord.size())
                                                    : *worker.stage);
}

TableRow worker_row(const monitor::WorkerStatus& worker, double batch, const Columns& columns) {
  const auto share = static_cast<double>(worker.share);
  TableRow row = {fmt::format("{}", worker.rank),
                  printable(fmt::format("{} on {}", worker.device, worker.host)),
                  worker.gone ? "gone" : fmt::format("{}", worker.share),
                  batch > 0 ? part_text(share / batch) : kNotKnown,
                  text_or_unknown("{:.0f}", worker.samples_per_s),
                  fmt::format("{:.0f}", worker.samples_per_s_alone),
                  part_text(worker.wait_part),
                  bytes_text(worker.bytes_per_s)};
  if (columns.stage) row.insert(row.begin() + 2, stage_text(worker));
  if (columns.staleness) {
    row.push_back(text_or_unknown("{:.1f}", worker.staleness));
    row.push_back(text_or_unknown("{}", worker.staleness_max));
  }
  return row;
}

// The alternate screen of xterm, which all terminals in use know; and the cursor.
constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l";
constexpr const char* kLeave = "\x1b[?25h\x1b[?1049l";
constexpr const char* kHome = "\x1b[H";
constexpr const char* kClearToEndOfLine = "\x1b[K";
constexpr const char* kClearBelow = "\x1b[J";

}  // namespace

std::vector<std::string> status_lines(const monitor::Status& status) {
  std::vector<std::string> lines = {progress_of(status)};
  if (status.step > 0) lines.push_back(rates_of(status));
  if (!status.workers.empty()) {
    const auto columns = columns_of(status);
    const auto batch = std::accumulate(
        status.workers.begin(), status.workers.end(), 0.0,
        [](double sum, const auto& worker) { return sum + static_cast<double>(worker.share); });
    std::vector<TableRow> rows = {heading(status, columns)};
    for (const auto& worker : status.workers) rows.push_back(worker_row(worker, batch, columns));
    for (auto& line : aligned(rows, 2)) lines.push_back(std::move(line));
  }
  for (const auto& notice : status.notices) lines.push_back("note: " + printable(notice));
  return lines;
}

Screen::Screen() {
  write_to(stdout, kEnter);
}

Screen::~Screen() {
  write_to(stdout, kLeave);
}

void Screen::draw(const std::vector<std::string>& lines) {
  const auto size = terminal_size();
  std::string text = kHome;
  int row = 0;
  for (const auto& line : lines) {
    if (++row >= size.rows) break;  // the last row stays empty: nothing may scroll
    text += cut_to(line, size.columns) + kClearToEndOfLine + "\r\n";
  }
  write_to(stdout, text + kClearBelow);
}

}  // namespace bimetal::cli
