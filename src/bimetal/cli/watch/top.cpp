#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/monitor/pages.h"
#include "bimetal/monitor/status.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/progress/text.h"

namespace bimetal::cli {

/// For a terminal alone (is_capable_terminal()). Use from one thread.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Lines beyond the terminal's size are cut.
  void draw(const std::vector<std::string>& lines);
};

namespace {

constexpr const char* kNotKnown = "–";
// For a job that goes on, however slowly: longer than most steps take.
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

/// Columns that only some jobs have.
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
                  worker.gone       ? "gone"
                  : worker.silent_s ? "silent"
                                    : fmt::format("{}", worker.share),
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

/// The lines of `bimetal top`. Control characters in the job's texts are taken out.
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

namespace {

constexpr const char* kTopExamples = R"(Examples:
  bimetal top 127.0.0.1:9100
  bimetal top 192.168.1.5:9100 --token-file bimetal.token --interval 5
  bimetal top 127.0.0.1:9100 --once --json

The job is started with --monitor ADDR:PORT (or monitor.listen in its file). Ctrl-C leaves; the job
goes on.

Exit status: 0 the job has ended, or --once has shown it, 130 left by Ctrl-C, others: docs/errors.md.)";

/// A monitor answers at once; a machine that swaps may take its time.
constexpr std::chrono::seconds kAnswerTimeout{3};
/// Longest silence of a job that has been seen, before it is given up.
constexpr std::chrono::seconds kPatience{60};

struct TopArguments {
  std::string address, token_file;
  double interval_s = 1;
  bool once = false, json = false;
};

class Top {
 public:
  explicit Top(const TopArguments& arguments)
      : arguments_(arguments),
        address_(net::parse_endpoint(arguments.address)),
        token_(monitor::monitor_token(read_token(arguments.token_file))) {}

  int run() {
    if (arguments_.once) {
      show(fetch());
      return kSuccess;
    }
    for (;;) {
      if (signals_.stop_requests() > 0) return leave("");
      if (std::ferror(stdout)) return kSuccess;  // `| head` has seen enough
      if (!look()) {
        return leave(
            fmt::format("the job has ended, or its machine is gone: nothing answers at {} "
                        "any more",
                        arguments_.address));
      }
      if (signals_.stop_requests() == 0) signals_.pause(milliseconds_of(arguments_.interval_s));
    }
  }

 private:
  monitor::Status fetch() {
    return monitor::parse_status(monitor::fetch_page(address_, monitor::kStatusPath, token_,
                                                     Deadline::after(kAnswerTimeout)));
  }

  /// False once a job that has been seen is there no more. Throws if there never was one.
  bool look() {
    try {
      show(fetch());
      give_up_.reset();
      return true;
    } catch (const Error& error) {
      if (!last_) throw;
      if (error.code() == ErrorCode::PeerLost) return false;
      if (error.code() != ErrorCode::Timeout) throw;
      if (!give_up_) give_up_ = Deadline::after(kPatience);
      if (give_up_->expired()) throw;
      show_lines(
          {fmt::format("{} does not answer; this is the last that it said:", arguments_.address)});
      return true;
    }
  }

  void show(monitor::Status status) {
    last_ = std::move(status);
    if (arguments_.json) {
      write_to(stdout, monitor::to_json(*last_));
    } else {
      show_lines({});
    }
  }

  /// Shows `head`, and the facts on the job.
  void show_lines(std::vector<std::string> head) {
    if (arguments_.json) return;
    const auto lines = status_lines(*last_);
    head.insert(head.end(), lines.begin(), lines.end());
    if (is_capable_terminal(STDOUT_FILENO) && !arguments_.once) {
      if (!screen_) screen_.emplace();
      screen_->draw(head);
    } else {
      if (std::exchange(shown_, true)) terminal_.print("");
      for (const auto& line : head) terminal_.print(line);
    }
  }

  /// Gives the terminal back, with the last figures on it. The exit status.
  int leave(const std::string& why) {
    if (screen_) {
      screen_.reset();
      for (const auto& line : status_lines(*last_)) terminal_.print(line);
    }
    if (why.empty()) return kInterrupted;
    if (arguments_.json) {
      print_to_errors("bimetal: " + why);
    } else {
      terminal_.print(terminal_.coloured(Colour::bold, why));
    }
    return kSuccess;
  }

  const TopArguments& arguments_;
  net::Endpoint address_;
  net::Token token_;
  launch::SignalWatch signals_;
  Terminal terminal_;
  std::optional<Screen> screen_;
  std::optional<monitor::Status> last_;
  std::optional<Deadline> give_up_;
  bool shown_ = false;
};

int top_command(const TopArguments& arguments) {
  return Top(arguments).run();
}

}  // namespace

void add_top(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<TopArguments>();
  auto* command = app.add_subcommand("top", "Watch a running job: speed, shares, waiting");
  command->add_option("address", arguments->address, "Where the job's monitor is")
      ->required()
      ->type_name("ADDR:PORT");
  command
      ->add_option("--token-file", arguments->token_file,
                   "The job's shared secret; needed beyond loopback")
      ->type_name("FILE");
  command->add_option("--interval", arguments->interval_s, "How often to look")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  command->add_flag("--once", arguments->once, "Look once");
  command->add_flag("--json", arguments->json, "Print JSON, one line each time");
  command->footer(kTopExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return top_command(*arguments); }; });
}

}  // namespace bimetal::cli
