#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/watch/top_view.h"
#include "bimetal/launch/local/signal_watch.h"
#include "bimetal/monitor/http_client.h"
#include "bimetal/monitor/pages.h"
#include "bimetal/monitor/status.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::cli {
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

  /// `head`, and what is known of the job.
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
