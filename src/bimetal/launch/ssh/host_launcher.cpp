#include "bimetal/launch/ssh/host_launcher.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <memory>

#include "bimetal/base/deadline.h"
#include "bimetal/launch/agent/rank_output.h"
#include "bimetal/launch/port_check.h"
#include "bimetal/launch/ssh/host_connection.h"
#include "bimetal/launch/ssh/host_jobs.h"

namespace bimetal::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHostsLookEvery{200};
/// Once a rank has failed, each host is asked whether it is there: a cable may be the cause.
constexpr milliseconds kAskEvery{500}, kToAnswer{2'000}, kSuspended{1'000};
/// For ranks to end that have been killed, and for agents and ssh to follow them.
constexpr milliseconds kAfterKill{10'000}, kAfterHangUp{5'000};
/// For the others once one rank has ended at the user's request: checkpoints take a while.
constexpr milliseconds kAfterInterrupt{120'000};

struct Host {
  HostRanks ranks;
  std::unique_ptr<HostConnection> connection;
  std::optional<AgentHello> hello;
  bool ready = false, reached = false, lost = false;
  int running = 0;                                        ///< ranks
  std::optional<Deadline::Clock::time_point> asked = {};  ///< since when without an answer
};

class HostLauncher {
 public:
  HostLauncher(const HostsPlan& plan, SignalWatch& signals)
      : plan_(plan), signals_(signals), printer_(plan.prefixed) {}

  /// No agent is left behind, and none leaves a rank behind.
  ~HostLauncher() {
    for (auto& host : hosts_) host.connection->hang_up();
    const auto deadline = Deadline::after(kAfterHangUp);
    const auto done = [](const Host& host) { return host.lost || host.connection->ended(); };
    while (!all(done) && !deadline.expired()) {
      try {
        for (auto& host : hosts_) host.connection->exchange(true);
      } catch (const Error&) {
        // Whatever it still says: it is killed below if it does not end.
      }
      signals_.pause(milliseconds(10));
    }
    printer_.print();
  }

  HostsResult run() {
    connect();
    if (get_ready()) {
      start();
      while (!all([](const Host& host) { return host.running == 0; })) {
        turn();
        hand_on_stop_requests();
        limit_the_wait();
      }
    }
    print_the_rest();
    if (lost_ && !result_.failure && !result_.interrupted) throw Error(*lost_);
    return result_;
  }

 private:
  template <typename Condition>
  bool all(Condition condition) const {
    return std::all_of(hosts_.begin(), hosts_.end(), condition);
  }

  // ---- before the ranks

  void connect() {
    for (const auto& ranks : plan_.hosts) {
      const bool here = ranks.name.find('@') == std::string::npos && is_this_machine(ranks.name);
      hosts_.push_back({ranks, std::make_unique<HostConnection>(ranks.name, here, plan_.ssh), {}});
    }
  }

  /// False if the user gave up meanwhile.
  bool get_ready() {
    const auto deadline = Deadline::after(plan_.start_timeout);
    if (!wait_for("answer", deadline, [](const Host& host) { return host.hello.has_value(); })) {
      return false;
    }
    send_jobs();
    if (!wait_for("get ready", deadline, [](const Host& host) { return host.ready; })) return false;
    for (std::size_t i = 1; i < hosts_.size(); ++i) {
      hosts_[i].connection->say({AgentMessage::reach, -1, net::to_string(master_)});
    }
    hosts_.front().reached = true;
    return wait_for("reach the first host", deadline,
                    [](const Host& host) { return host.reached; });
  }

  bool wait_for(const char* what, Deadline deadline, bool (*done)(const Host&)) {
    while (!all(done)) {
      turn();
      if (signals_.stop_requests() > 0) {
        result_.interrupted = true;
        return false;
      }
      for (const auto& host : hosts_) {
        if (!done(host) && host.connection->ended()) throw host.connection->explain();
        if (!done(host) && deadline.expired()) {
          throw Error(ErrorCode::Timeout,
                      fmt::format("host {} did not {} within {} s; try: ssh {} true. "
                                  "(--start-timeout gives it longer)",
                                  host.ranks.name, what, plan_.start_timeout.count() / 1000,
                                  host.ranks.name));
        }
      }
    }
    return true;
  }

  void send_jobs() {
    std::vector<MeetingHost> meeting_hosts;
    std::vector<bool> here;
    for (const auto& host : hosts_) {
      here.push_back(host.connection->here());
      meeting_hosts.push_back({without_user(host.ranks.name), host.hello->address, here.back()});
    }
    master_ = {plan_.master_host.empty() ? meeting_address(meeting_hosts) : plan_.master_host,
               plan_.master_port};
    const auto jobs = jobs_of_hosts(plan_, master_, here);
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      hosts_[i].connection->say({AgentMessage::job, -1, encode_job(jobs[i])});
    }
  }

  void start() {
    for (auto& host : hosts_) {
      host.running = host.ranks.count;
      host.connection->say({AgentMessage::start, -1, encode_number(master_.port)});
    }
    if (hosts_.size() == 1) return;
    std::string who;
    for (const auto& host : hosts_) {
      const auto& ranks = host.ranks;
      who += fmt::format("{}{} {}-{}", who.empty() ? "" : ", ", ranks.name, ranks.first_rank,
                         ranks.first_rank + ranks.count - 1);
    }
    plan_.note(fmt::format("ranks {}; they meet at {}", who, net::to_string(master_)));
  }

  // ---- while they run

  /// Waits for news of any kind and takes it in.
  void turn() {
    const bool room = printer_.has_room();
    wait_for_news(room);
    for (auto& host : hosts_) {
      if (host.lost) continue;
      for (auto& message : host.connection->exchange(room)) take(host, message);
      note_answer(host);
      show(-1, OutputStream::errors, host, host.connection->take_errors());
      notice_loss(host);
    }
    beat();
    printer_.print();
  }

  void wait_for_news(bool room) {
    WaitSet news;
    news.add_readable(signals_.descriptor().number());
    for (const auto& host : hosts_) {
      if (!host.lost) host.connection->add_to(news, room);
    }
    printer_.add_to(news);
    news.wait(kHostsLookEvery);
    signals_.drain();
  }

  void take(Host& host, Message& message) {
    switch (message.kind) {
      case AgentMessage::hello: return greet(host, decode_hello(message.text));
      case AgentMessage::ready: return note_ready(host, decode_number(message.text));
      case AgentMessage::reached: host.reached = true; return;
      case AgentMessage::output: return show(message.rank, OutputStream::out, host, message.text);
      case AgentMessage::errors:
        return show(message.rank, OutputStream::errors, host, message.text);
      case AgentMessage::ended: return note_end(host, message.rank, decode_end(message.text));
      case AgentMessage::failed: throw on_host(host, decode_error(message.text));
      default: return;
    }
  }

  /// An agent's error, with the name by which the user knows its host.
  static Error on_host(const Host& host, const Error& error) {
    if (host.connection->here()) return error;
    return {error.code(), fmt::format("host {}: {}", host.ranks.name, error.what()), error.rank()};
  }

  void greet(Host& host, AgentHello hello) {
    if (hello.version != plan_.version) {
      throw Error(ErrorCode::ProtocolMismatch,
                  fmt::format("host {} has Bimetal {} and this one {}; install the same version on "
                              "all hosts, or name another by --remote-bimetal PATH",
                              host.ranks.name, hello.version, plan_.version));
    }
    host.hello = std::move(hello);
  }

  void note_ready(Host& host, std::int64_t port) {
    host.ready = true;
    if (&host == &hosts_.front()) master_.port = static_cast<std::uint16_t>(port);
  }

  void note_end(Host& host, int rank, const RankEnd& end) {
    --host.running;
    printer_.end(rank);
    if (!first_end_) first_end_ = Deadline::after(kAfterInterrupt);
    const bool failed = end.exit.status != 0 || end.exit.signal != 0;
    if (!failed || result_.interrupted) return;
    const bool first = !result_.failure && !lost_;
    // A killed one is the cause, even if another's complaint about its loss arrived first.
    const bool cause = result_.failure && !killing_ && is_fatal(end.exit.signal) &&
                       !is_fatal(result_.failure->exit.signal);
    if (first || cause) {
      const bool misses = !host.connection->here() && printer_.misses_module(rank);
      result_.failure = RankFailure{rank, host.ranks.name, end.pid, end.exit, misses};
    }
    end_the_others();
  }

  void notice_loss(Host& host) {
    const bool elsewhere = !host.connection->here() && host.hello;
    const bool silent = elsewhere && host.connection->silent_for() > plan_.silence;
    if (host.running == 0) return;
    if (!host.connection->ended() && !silent) {
      if (gives_no_answer(host) && others_are_through(host)) give_up_unheard(host);
      return;
    }
    const int last = host.ranks.first_rank + host.ranks.count - 1;
    const Error why = host.connection->ended()
                          ? host.connection->explain()
                          : Error(ErrorCode::PeerLost,
                                  fmt::format("lost host {}: no word from it for {} s",
                                              host.ranks.name, plan_.silence.count() / 1000));
    // Ranks elsewhere may have complained of the loss before it was seen here.
    if (result_.failure && !is_fatal(result_.failure->exit.signal)) result_.failure.reset();
    give_up(host, Error(why.code(), fmt::format("{} (ranks {}-{}); the other ranks were stopped",
                                                why.what(), host.ranks.first_rank, last)));
  }

  /// Answers that came while this launcher was suspended have not been read yet.
  void note_answer(Host& host) {
    const auto now = Deadline::Clock::now();
    const bool suspended = now - last_turn_ > kSuspended;
    const bool heard = host.asked && now - host.connection->silent_for() > *host.asked;
    if (suspended || heard) host.asked.reset();
    if (&host == &hosts_.back()) last_turn_ = now;
  }

  static bool gives_no_answer(const Host& host) {
    return host.asked && Deadline::Clock::now() - *host.asked > kToAnswer;
  }

  /// Nothing is lost by waiting for a host that may only be slow while ranks elsewhere still end.
  bool others_are_through(const Host& host) const {
    return all([&](const Host& other) {
      return &other == &host || other.running == 0 || gives_no_answer(other);
    });
  }

  /// What has failed elsewhere may be the cause of it or follow from it: both are told.
  void give_up_unheard(Host& host) {
    const Error why(ErrorCode::PeerLost,
                    fmt::format("lost host {}: it has not answered for {} s since a rank failed",
                                host.ranks.name, kToAnswer.count() / 1000));
    plan_.note(why.what());
    give_up(host, why);
  }

  void give_up(Host& host, const Error& why) {
    host.lost = true;
    host.running = 0;
    host.connection->hang_up();
    if (!lost_) lost_ = why;
    end_the_others();
  }

  void beat() {
    if (!next_beat_.expired()) return;
    for (auto& host : hosts_) {
      if (host.connection->here() || !host.hello) continue;
      host.connection->say({AgentMessage::beat});
      if (asks_ && !host.asked) host.asked = Deadline::Clock::now();
    }
    next_beat_ =
        Deadline::after(asks_ ? std::min(kAskEvery, plan_.silence / 4) : plan_.silence / 4);
  }

  // ---- ending

  void say_to_all(AgentMessage kind, int signal) {
    for (auto& host : hosts_) host.connection->say({kind, -1, encode_number(signal)});
  }

  void end_the_others() {
    if (kill_at_) return;
    say_to_all(AgentMessage::signal, SIGTERM);
    kill_at_ = Deadline::after(plan_.grace);
    asks_ = true;
    next_beat_ = Deadline::after({});
  }

  void kill_all() {
    if (killing_) return;
    say_to_all(AgentMessage::kill, 0);
    killing_ = Deadline::after(kAfterKill);
  }

  void hand_on_stop_requests() {
    const int requests = signals_.stop_requests();
    if (requests >= 1 && !result_.interrupted) {
      result_.interrupted = true;
      first_end_.reset();
      // A terminal that goes away is no reason that programs expect.
      const int signal = signals_.first_signal() == SIGINT ? SIGINT : SIGTERM;
      say_to_all(AgentMessage::signal, signal);
      plan_.note("stopping the ranks; Ctrl-C again kills them");
    }
    if (requests >= 2 && !result_.killed) {
      result_.killed = true;
      kill_all();
      // Whoever does not read what is there must not keep the user waiting.
      printer_.mute();
    }
  }

  void limit_the_wait() {
    if (kill_at_ && kill_at_->expired()) kill_all();
    if (result_.interrupted && first_end_ && first_end_->expired()) kill_all();
    if (!killing_ || !killing_->expired()) return;
    for (auto& host : hosts_) {
      if (host.running == 0) continue;
      const Error why(
          ErrorCode::PeerLost,
          fmt::format("host {} does not say that its ranks have ended", host.ranks.name));
      plan_.note(why.what());
      give_up(host, why);
    }
  }

  // ---- output

  /// Of a rank, or (-1) of the host itself.
  void show(int rank, OutputStream stream, const Host& host, const std::string& bytes) {
    if (bytes.empty()) return;
    if (rank < 0) return plan_.note(fmt::format("host {}: {}", host.ranks.name, trimmed(bytes)));
    printer_.take(rank, stream, bytes);
  }

  static std::string trimmed(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    return text;
  }

  void print_the_rest() {
    const int before = signals_.stop_requests();
    while (!printer_.empty() && signals_.stop_requests() == before) {
      wait_for_news(false);
      printer_.print();
    }
  }

  const HostsPlan& plan_;
  SignalWatch& signals_;
  RankPrinter printer_;
  net::Endpoint master_;
  std::vector<Host> hosts_;
  std::optional<Error> lost_;
  std::optional<Deadline> first_end_, kill_at_, killing_;
  Deadline next_beat_ = Deadline::after({});
  bool asks_ = false;  ///< hosts have to answer: a rank has failed
  Deadline::Clock::time_point last_turn_ = Deadline::Clock::now();
  HostsResult result_;
};

}  // namespace

HostsResult run_on_hosts(const HostsPlan& plan, SignalWatch& signals) {
  return HostLauncher(plan, signals).run();
}

}  // namespace bimetal::launch
