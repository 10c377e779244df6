#include "bimetal/launch/agent/host_agent.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <filesystem>
#include <memory>
#include <sstream>
#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/base/unicode/utf8_path.h"
#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/agent/outgoing_bytes.h"
#include "bimetal/launch/local/find_program.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/rank_process.h"
#include "bimetal/launch/local/signal_watch.h"
#include "bimetal/launch/port_check.h"
#include "bimetal/launch/system/environment.h"
#include "bimetal/launch/system/wait_set.h"

namespace bimetal::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAgentLooksEvery{200};
constexpr milliseconds kPatienceToReach{5000};
/// With so much on its way to the launcher, the ranks' output stays where it is.
constexpr std::size_t kMostOnTheWay = 4 << 20;
/// More than a pipe holds: what a rank has left behind is read whole.
constexpr std::size_t kMostAtOnce = 1 << 20;
/// For the launcher to say what is to be run.
constexpr milliseconds kPatienceForJob{600'000};

/// At which of its addresses this host was reached by ssh: the third word of SSH_CONNECTION. One
/// with a zone means something on this host alone.
std::string address_reached() {
  const char* connection = std::getenv("SSH_CONNECTION");
  std::istringstream words(connection ? connection : "");
  std::string client, client_port, server;
  words >> client >> client_port >> server;
  return server.find('%') == std::string::npos ? server : std::string();
}

/// As a terminal does: Ctrl-C is for whatever the command has started, too.
void pass_on(RankProcess& rank, int signal) {
  if (signal == SIGINT) {
    rank.send_to_group(signal);
  } else {
    rank.send(signal);
  }
}

class HostAgent {
 public:
  explicit HostAgent(std::string version) : version_(std::move(version)), input_(STDIN_FILENO) {
    set_nonblocking(input_);
    on_the_way_.push(kAgentGreeting);
    say({AgentMessage::hello, -1,
         encode_hello({version_, asio::ip::host_name(), address_reached()})});
  }

  int run() {
    while (!(begun_ && ranks_.empty() && on_the_way_.empty())) {
      wait_for_news();
      if (!hear() || gone_) return leave();
      pass_on_own_signals();
      look_after_ranks();
      send_beat();
      gone_ = gone_ || !on_the_way_.write_some(STDOUT_FILENO);
    }
    return 0;
  }

 private:
  void say(const Message& message) { on_the_way_.push(encode_message(message)); }

  /// The launcher is gone: nobody waits for these ranks any more.
  int leave() {
    for (auto& rank : ranks_) rank.kill();
    return 1;
  }

  void wait_for_news() {
    WaitSet news;
    news.add_readable(input_.number());
    news.add_readable(signals_.descriptor().number());
    if (!on_the_way_.empty()) news.add_writable(STDOUT_FILENO);
    for (const auto& rank : ranks_) {
      if (on_the_way_.size() >= kMostOnTheWay) break;
      rank.add_to(news);
    }
    news.wait(kAgentLooksEvery);
    signals_.drain();
  }

  /// False if the launcher is gone, or has been silent for too long.
  bool hear() {
    std::string bytes;
    const bool open = read_available(input_, bytes);
    if (!bytes.empty()) last_heard_ = Deadline::Clock::now();
    reader_.feed(bytes);
    while (const auto message = reader_.next()) obey(*message);
    const auto silent_for = Deadline::Clock::now() - last_heard_;
    const auto patience = job_.command.empty() ? kPatienceForJob : milliseconds(job_.silence_ms);
    return open && (patience == milliseconds(0) || silent_for < patience);
  }

  /// What goes wrong is told to the launcher, which ends the job.
  void obey(const Message& message) {
    try {
      switch (message.kind) {
        case AgentMessage::job: return prepare(decode_job(message.text));
        case AgentMessage::reach:
          require_reachable(net::parse_endpoint(message.text), kPatienceToReach);
          return say({AgentMessage::reached});
        case AgentMessage::start: return start(static_cast<int>(decode_number(message.text)));
        case AgentMessage::signal:
          for (auto& rank : ranks_) pass_on(rank, static_cast<int>(decode_number(message.text)));
          return;
        case AgentMessage::kill:
          for (auto& rank : ranks_) rank.kill();
          return;
        case AgentMessage::beat: return say({AgentMessage::beat});
        default: return;
      }
    } catch (const Error& error) {
      say({AgentMessage::failed, error.rank().value_or(-1), encode_error(error)});
    }
  }

  void prepare(AgentJob job) {
    job_ = std::move(job);
    for (const auto& [name, value] : job_.environment) set_environment_variable(name, value);
    set_defaults();
    enter_directory();
    job_.command = runnable(std::move(job_.command));
    if (job_.is_first_host) held_port_ = std::make_unique<HeldPort>(job_.master);
    say({AgentMessage::ready, -1, encode_number(held_port_ ? held_port_->port() : 0)});
  }

  /// What nearly everybody would have to set by hand. Neither takes the place of a value that is
  /// there.
  void set_defaults() {
    find_own_program_too();
    default_environment_variable("PYTHONUNBUFFERED",
                                 "1");  // Python keeps what it prints into a pipe to itself
    const auto cores = std::max(1u, std::thread::hardware_concurrency());
    const auto threads =
        std::max<std::size_t>(1, cores / std::max<std::size_t>(1, job_.ranks.size()));
    if (job_.ranks.size() > 1) {
      default_environment_variable("OMP_NUM_THREADS", std::to_string(threads));
    }
  }

  /// `bimetal train` runs where only --remote-bimetal says where Bimetal is.
  static void find_own_program_too() {
    try {
      add_program_folder(utf8_of_path(own_program().parent_path()));
    } catch (const Error&) {
      // It cannot be told without /proc; what the user has in PATH needs no such help.
    }
  }

  void enter_directory() {
    std::error_code failed;
    std::filesystem::current_path(path_of_utf8(job_.directory), failed);
    if (!failed) return;
    if (job_.directory_is_needed) {
      throw Error(ErrorCode::System,
                  fmt::format("{} cannot enter folder {}: {}", asio::ip::host_name(),
                              job_.directory, failed.message()));
    }
    const auto home = home_folder();
    if (home) std::filesystem::current_path(path_of_utf8(*home), failed);
    say({AgentMessage::errors, -1,
         fmt::format("there is no folder {} here: the ranks start in {} (--chdir DIR chooses)\n",
                     job_.directory, failed ? "the folder that ssh begins in" : *home)});
  }

  RankProcess started(int rank, const NamedValues& environment) const {
    try {
      return {rank,
              {job_.command, environment, {}, /*dies_with_starter=*/true},
              {STDOUT_FILENO, STDERR_FILENO}};
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("rank {} cannot be started: {}", rank, error.what()),
                  rank);
    }
  }

  void start(int master_port) {
    held_port_.reset();
    const auto master = master_variables(job_.master.host, master_port);
    for (auto& [rank, environment] : job_.ranks) {
      environment.insert(environment.end(), master.begin(), master.end());
      ranks_.push_back(started(rank, environment));
      say({AgentMessage::started, rank, encode_number(ranks_.back().pid())});
    }
    job_.ranks.clear();
    begun_ = true;
  }

  /// Somebody ends this agent alone: its ranks go first.
  void pass_on_own_signals() {
    const int requests = signals_.stop_requests();
    if (requests > own_signals_) {
      for (auto& rank : ranks_) requests > 1 ? rank.kill() : rank.send(SIGTERM);
    }
    own_signals_ = requests;
    gone_ = gone_ || (requests > 0 && ranks_.empty());
  }

  void look_after_ranks() {
    for (auto& rank : ranks_) {
      rank.look();
      if (rank.running() && on_the_way_.size() >= kMostOnTheWay) continue;
      hand_on(rank.rank(), AgentMessage::output, rank.stream(0));
      hand_on(rank.rank(), AgentMessage::errors, rank.stream(1));
      if (rank.running()) continue;
      say({AgentMessage::ended, rank.rank(), encode_end({rank.pid(), rank.exit()})});
    }
    std::erase_if(ranks_, [](const auto& rank) { return !rank.running(); });
  }

  void hand_on(int rank, AgentMessage kind, FileDescriptor& stream) {
    if (!stream) return;
    std::string bytes;
    if (!read_some(stream, bytes, kMostAtOnce)) stream.close();
    if (!bytes.empty()) say({kind, rank, std::move(bytes)});
  }

  void send_beat() {
    if (job_.silence_ms == 0 || !next_beat_.expired()) return;
    say({AgentMessage::beat});
    next_beat_ = Deadline::after(milliseconds(job_.silence_ms / 4));
  }

  const std::string version_;
  SignalWatch signals_;
  FileDescriptor input_;
  MessageReader reader_;
  OutgoingBytes on_the_way_;
  AgentJob job_;
  std::unique_ptr<HeldPort> held_port_;
  std::vector<RankProcess> ranks_;
  bool begun_ = false, gone_ = false;
  int own_signals_ = 0;
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
  Deadline next_beat_ = Deadline::after({});
};

}  // namespace

int run_host_agent(const std::string& version) {
  return HostAgent(version).run();
}

}  // namespace bimetal::launch
