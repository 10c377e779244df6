#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/supervisor.h"
#include "bimetal/launch/port_check.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/launch/system/environment.h"
#include "bimetal/membership/door.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookAtBoardEvery{1000};
constexpr milliseconds kPatienceToReach{5000};
/// With so much on its way to the launcher, the ranks' output stays where it is.
constexpr std::size_t kMostOnTheWay = 4 << 20;
/// For the launcher to name the command.
constexpr milliseconds kPatienceForJob{600'000};

/// The address at which ssh reached this host: the third word of SSH_CONNECTION. One with a zone
/// has a meaning only on this host.
std::string address_reached() {
  const char* connection = std::getenv("SSH_CONNECTION");
  std::istringstream words(connection ? connection : "");
  std::string client, client_port, server;
  words >> client >> client_port >> server;
  return server.find('%') == std::string::npos ? server : std::string();
}

/// A store in which the members of an elastic job show who they are, each on its own machine: it
/// outlives them, and a process started in the place of a lost one finds the others there.
class Board {
 public:
  std::string address() const { return net::to_string(server_.endpoint()); }
  /// Whether members have shown that they are.
  bool has_roll() { return store_->try_get(membership::kRollKey, soon()).has_value(); }
  std::optional<std::string> last_words() { return store_->try_get(kLastWordsKey, soon()); }

 private:
  static Deadline soon() { return Deadline::after(milliseconds(5000)); }

  rendezvous::StoreServer server_{{"127.0.0.1", 0}, net::Token::from_environment()};
  std::unique_ptr<rendezvous::Store> store_ =
      rendezvous::connect_store(server_.endpoint(), net::Token::from_environment(), soon());
};

class HostAgent {
 public:
  explicit HostAgent(std::string version)
      : version_(std::move(version)),
        input_(STDIN_FILENO),
        ranks_(
            signals_,
            [this](const auto& rank, std::size_t stream, std::string bytes) {
              say({stream == 0 ? AgentMessage::output : AgentMessage::errors, rank.rank(),
                   std::move(bytes)});
            },
            [this](const auto& rank) { note_end(rank); },
            [this] { return on_the_way_.size() < kMostOnTheWay; }) {
    set_nonblocking(input_);
    on_the_way_.push(kAgentGreeting);
    say({AgentMessage::hello, -1,
         encode_hello({version_, asio::ip::host_name(), address_reached()})});
  }

  int run() {
    while (!(begun_ && !ranks_.any_running() && on_the_way_.empty() && !job_.may_restart)) {
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
    ranks_.kill();
    return 1;
  }

  void wait_for_news() {
    WaitSet news;
    news.add_readable(input_.number());
    if (!on_the_way_.empty()) news.add_writable(STDOUT_FILENO);
    ranks_.wait(news);
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

  /// The launcher is told of errors, and ends the job.
  void obey(const Message& message) {
    try {
      switch (message.kind) {
        case AgentMessage::job: return prepare(decode_job(message.text));
        case AgentMessage::reach:
          require_reachable(net::parse_endpoint(message.text), kPatienceToReach);
          return say({AgentMessage::reached});
        case AgentMessage::start:
          if (message.rank >= 0) return start_again(message.rank);
          return start(static_cast<int>(decode_number(message.text)));
        case AgentMessage::signal: return pass_on(static_cast<int>(decode_number(message.text)));
        case AgentMessage::kill: return ranks_.kill();
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

  /// Settings that nearly everybody would have to make by hand. Neither replaces a value that is
  /// there.
  void set_defaults() {
    find_own_program_too();
    default_environment_variable("PYTHONUNBUFFERED",
                                 "1");  // Python buffers its output into a pipe
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
      // It cannot be told without /proc; a program in the user's PATH needs no such help.
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

  void start(int master_port) {
    board_.emplace();
    address_ = net::address_towards(job_.master);
    held_port_.reset();
    const auto master = master_variables(job_.master.host, master_port);
    for (auto& [rank, environment] : job_.ranks) {
      environment.insert(environment.end(), master.begin(), master.end());
      environment.emplace_back(kBoardVariable, board_->address());
      start(rank, environment);
    }
    begun_ = true;
  }

  void start(int rank, const NamedValues& environment) {
    const auto& started =
        ranks_.start(rank, "", {job_.command, environment, {}, /*dies_with_starter=*/true},
                     {STDOUT_FILENO, STDERR_FILENO});
    say({AgentMessage::started, rank, encode_number(started.pid())});
  }

  /// In the place of a process that is lost.
  void start_again(int lost) {
    for (auto [rank, environment] : job_.ranks) {
      if (rank != lost) continue;
      environment.insert(environment.end(),
                         {{kDoorVariable, board_->address()}, {"BIMETAL_ADDRESS", address_}});
      start(rank, environment);
    }
  }

  /// As a terminal does: Ctrl-C is for whatever the command has started, too.
  void pass_on(int signal) {
    ranks_.each([signal](auto& rank) {
      signal == SIGINT ? rank.send_to_group(signal) : rank.send(signal);
    });
  }

  /// Somebody ends this agent alone: its ranks go first.
  void pass_on_own_signals() {
    const int requests = signals_.stop_requests();
    if (requests > own_signals_) requests > 1 ? ranks_.kill() : pass_on(SIGTERM);
    own_signals_ = requests;
    gone_ = gone_ || (requests > 0 && !ranks_.any_running());
  }

  /// Before the end of a rank that is lost.
  void tell_if_elastic() {
    if (!board_ || told_elastic_ || !board_->has_roll()) return;
    told_elastic_ = true;
    say({AgentMessage::elastic});
  }

  void tell_what_is_left() {
    const auto words = board_ ? board_->last_words() : std::nullopt;
    if (!words || *words == last_words_) return;
    last_words_ = *words;
    say({AgentMessage::left, -1, *words});
  }

  void note_end(const RankProcess& rank) {
    tell_if_elastic();
    tell_what_is_left();
    say({AgentMessage::ended, rank.rank(), encode_end({rank.pid(), rank.exit()})});
  }

  void look_after_ranks() {
    if (next_look_at_board_.expired()) {
      tell_if_elastic();
      next_look_at_board_ = Deadline::after(kLookAtBoardEvery);
    }
    ranks_.look();
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
  Supervisor ranks_;
  std::optional<Board> board_;
  std::string address_;  ///< of this host, as the others reach it
  std::string last_words_;
  bool begun_ = false, gone_ = false, told_elastic_ = false;
  int own_signals_ = 0;
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
  Deadline next_beat_ = Deadline::after({}), next_look_at_board_ = Deadline::after({});
};

}  // namespace

int run_host_agent(const std::string& version) {
  return HostAgent(version).run();
}

}  // namespace bimetal::launch
