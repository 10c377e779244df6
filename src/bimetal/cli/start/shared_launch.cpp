#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/cli/fabric/launch_task.h"
#include "bimetal/cli/start/host_meeting.h"
#include "bimetal/cli/start/way_in.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/job_board.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// In the job's store, beside the board's.
constexpr const char* kMeetingPoint = "launch/meeting_point";
constexpr const char* kReady = "launch/ready";  // machines but the first
constexpr const char* kGo = "launch/go";
// And the machine's number.
constexpr const char *kBeat = "launch/beat/", *kOver = "launch/over/";

constexpr milliseconds kLookAroundEvery{100}, kBeatEvery{300};
/// The first machine gives up before.
constexpr double kMostUntilStart_s = 24 * 3600;
constexpr std::chrono::seconds kForTheReason{5};

Deadline in_time() {
  return Deadline::after(std::chrono::seconds(10));
}

/// The launchers of the other machines, by the job's store. Use from one thread.
class ByStore final : public launch::OtherLaunchers {
 public:
  /// `machines`: all machines of the job; this is number `own`.
  ByStore(launch::JobStore& store, launch::JobBoard& board, launch::SignalWatch& signals,
          const launch::HostsPlan& plan)
      : store_(store), board_(board), signals_(signals), plan_(plan) {}

  /// The address at which the first machine's ranks will meet; nothing if the user gave up.
  std::optional<net::Endpoint> meeting_point() {
    std::optional<std::string> place;
    if (!wait_until([&] { return (place = store_.try_get(kMeetingPoint, in_time())).has_value(); },
                    "the first machine is not ready"))
      return std::nullopt;
    return net::parse_endpoint(*place);
  }

  bool meet(const net::Endpoint& master) override {
    if (plan_.own > 0) {
      store_.add(kReady, 1, in_time());
      return wait_until([&] { return store_.try_get(kGo, in_time()).has_value(); },
                        "a machine is not ready");
    }
    store_.set(kMeetingPoint, net::to_string(master), in_time());
    const auto others = static_cast<std::int64_t>(plan_.hosts.size()) - 1;
    if (!wait_until([&] { return store_.add(kReady, 0, in_time()) >= others; },
                    "a machine is not ready"))
      return false;
    store_.set(kGo, "1", in_time());
    return true;
  }

  std::optional<Error> failure() override {
    try {
      beat();
      if (plan_.own == 0) require_beats();
      auto noted = board_.failure();
      if (noted && told_ && std::string_view(noted->what()) == *told_) return std::nullopt;
      return noted;
    } catch (const Error& error) {
      if (plan_.own == 0) return error;
      return Error(ErrorCode::PeerLost, fmt::format("the job's first machine, {}, is gone: {}",
                                                    plan_.hosts.front().name, error.what()));
    }
  }

  void fail(const Error& why) override {
    told_ = fmt::format("on {}: {}", own_host_name(), why.what());
    try {
      board_.fail(why, own_host_name());
    } catch (const Error&) {
      // A machine that cannot be told sees that the ranks are gone.
    }
  }

  /// Another machine than the first, whose ranks have ended: it beats no more.
  void end() {
    try {
      store_.set(kOver + std::to_string(plan_.own), "1", in_time());
    } catch (const Error&) {
      // The first machine is gone, or misses this one in a while.
    }
  }

  /// The first machine, whose ranks have ended well: for all others to end, too, since they need
  /// the store. Why the job has failed there; Aborted if the user does not wait.
  std::optional<Error> wait_for_others() {
    board_.leave();
    while (true) {
      // A machine tells why before it leaves: its words are looked for after its leave.
      const bool alone = board_.everyone_left();
      if (auto why = failure()) return why;
      if (alone) return std::nullopt;
      signals_.pause(kLookAroundEvery);
      if (signals_.stop_requests() == 0) continue;
      const Error stopped(ErrorCode::Aborted, "the ranks are stopped by Ctrl-C there");
      fail(stopped);
      return stopped;
    }
  }

 private:
  template <typename Condition>
  bool wait_until(const Condition& condition, const char* else_what) {
    const auto deadline = Deadline::after(plan_.start_timeout);
    while (!condition()) {
      if (auto why = failure()) throw Error(*why);
      if (signals_.stop_requests() > 0) {
        fail({ErrorCode::Aborted, "given up before the ranks began"});
        return false;
      }
      if (deadline.expired()) {
        const Error late(ErrorCode::Timeout,
                         fmt::format("{} within {} s: see its terminal (--start-timeout gives it "
                                     "longer)",
                                     else_what, plan_.start_timeout.count() / 1000));
        fail(late);
        throw late;
      }
      signals_.pause(kLookAroundEvery);
    }
    return true;
  }

  void beat() {
    if (plan_.own == 0 || !next_beat_.expired()) return;
    store_.add(kBeat + std::to_string(plan_.own), 1, in_time());
    next_beat_ = Deadline::after(kBeatEvery);
  }

  void require_beats() {
    if (!next_beat_.expired()) return;
    next_beat_ = Deadline::after(kBeatEvery);
    for (std::size_t machine = 1; machine < plan_.hosts.size(); ++machine) {
      const auto count = store_.add(kBeat + std::to_string(machine), 0, in_time());
      auto& [seen, since] = beats_[machine];
      if (count != seen) since = Deadline::Clock::now();
      seen = count;
      if (count == 0 || Deadline::Clock::now() - since < plan_.silence) continue;
      if (store_.try_get(kOver + std::to_string(machine), in_time())) continue;
      const auto& lost = plan_.hosts[machine];
      throw Error(ErrorCode::PeerLost,
                  fmt::format("lost machine {} (ranks {}-{}): no word from it for {} s", lost.name,
                              lost.first_rank, lost.first_rank + lost.count - 1,
                              plan_.silence.count() / 1000));
    }
  }

  struct Beats {
    std::int64_t seen = 0;
    Deadline::Clock::time_point since;
  };

  launch::JobStore& store_;
  launch::JobBoard& board_;
  launch::SignalWatch& signals_;
  const launch::HostsPlan& plan_;
  std::optional<std::string> told_;  ///< as the board has it
  Deadline next_beat_ = Deadline::after({});
  std::map<std::size_t, Beats> beats_;
};

bool is_script(const std::string& word) {
  return word.ends_with(".py");
}

/// The command that this machine runs: its own script of that name, or what its user says.
std::vector<std::string> command_here(const launch::JobOffer& offer, const JoinOptions& options,
                                      const std::string& host) {
  if (!options.command.empty()) return options.command;
  const auto& script = offer.command.front();
  const auto path = path_of_utf8(script);
  const bool plain = is_script(script) && path.is_relative() &&
                     std::ranges::none_of(path, [](const auto& part) { return part == ".."; });
  const auto own = fmt::format("bimetal join {} -- COMMAND", host);
  if (!plain) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} runs {}, and what another machine names is not run here: only a "
                            "script of this folder is. Say what to run: {}",
                            host, script, own));
  }
  if (!fs::exists(path)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} runs {}, which is not in {}: put this machine's copy of it there, "
                            "join from the folder that has it, or say what to run: {}",
                            host, script, utf8_of_path(fs::current_path()), own));
  }
  return offer.command;
}

/// `plan` knows all machines.
int run_own_ranks(launch::HostsPlan& plan, ByStore& others, launch::SignalWatch& signals) {
  plan.others = &others;
  return run_and_tell(plan, signals);
}

int interrupted() {
  print_to_errors("bimetal: interrupted");
  return kInterrupted;
}

}  // namespace

int share_launch(launch::HostsPlan plan, int ranks, int world_size, const HostOptions& options) {
  launch::SignalWatch signals;
  HostMeeting meeting(options, world_size, signals,
                      [](const std::string& text) { print_to_errors(text); });
  plan.token = meeting.token();
  plan.master_host = meeting.address().host;
  const auto script = utf8_of_path(path_of_utf8(plan.command.front()).filename());
  meeting.offer({std::string(release()), "", meeting.world_size(), 0, plan.command}, ranks, script);
  if (!meeting.wait_for_workers(static_cast<double>(plan.start_timeout.count()) / 1000,
                                "--start-timeout")) {
    return interrupted();
  }
  plan.hosts = meeting.board().machines(meeting.world_size());
  ByStore others(meeting.store(), meeting.board(), signals, plan);
  meeting.board().start();
  int status = kSuccess;
  try {
    status = run_own_ranks(plan, others, signals);
  } catch (const Error& error) {
    others.fail(error);  // where it is this machine's
    meeting.wait_until_others_left(kForTheReason, true);
    throw;
  }
  if (status != kSuccess) {
    meeting.wait_until_others_left(kForTheReason, true);
    return status;
  }
  const auto why = others.wait_for_others();
  if (!why) return kSuccess;
  if (why->code() != ErrorCode::Aborted) throw Error(*why);
  return interrupted();
}

int join_launch(JobToJoin& job, const JoinOptions& options, launch::SignalWatch& signals) {
  auto plan = plan_from_here();
  plan.command = command_here(job.offer, options, job.name);
  plan.token = job.way.token;
  const int ranks = options.ranks.value_or(1);
  const int first = job.board.claim(ranks, job.offer.world_size);
  const Leaving leaving(job.board);
  print_to_errors(fmt::format(
      "joined {} with rank{} of {}: {}", job.name,
      ranks == 1 ? fmt::format(" {}", first) : fmt::format("s {}-{}", first, first + ranks - 1),
      job.offer.world_size, fmt::join(plan.command, " ")));
  if (!wait_for_start(job, signals, kMostUntilStart_s)) return interrupted();
  plan.hosts = job.board.machines(job.offer.world_size);
  const auto own = std::ranges::find(plan.hosts, first, &launch::HostRanks::first_rank);
  plan.own = static_cast<std::size_t>(own - plan.hosts.begin());
  ByStore others(job.store, job.board, signals, plan);
  try {
    const auto master = others.meeting_point();
    if (!master) return interrupted();
    plan.master_host = master->host;
    plan.master_port = master->port;
    const int status = run_own_ranks(plan, others, signals);
    others.end();
    return status;
  } catch (const Error& error) {
    others.fail(error);
    throw;
  }
}

void add_join_launch(CLI::App& app, Action& action) {
  auto options = std::make_shared<JoinOptions>();
  auto* command =
      app.add_subcommand("join", "Bring ranks to a script that another machine has launched");
  add_join_options(*command, *options);
  command->callback([options, &action] {
    action = [options] {
      Terminal terminal;
      JobToJoin job(*options, terminal);
      launch::SignalWatch signals;
      if (job.is_launch()) return join_launch(job, *options, signals);
      throw Error(ErrorCode::Unsupported,
                  fmt::format("the job of {} is trained by a job file, which takes the whole "
                              "program: pip install 'bimetal[train]' (docs/install.md)",
                              job.name));
    };
  });
}

}  // namespace bimetal::cli
