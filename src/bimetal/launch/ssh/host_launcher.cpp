#include "bimetal/launch/ssh/host_launcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>

#include "bimetal/base/deadline.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/launch/agent/rank_output.h"
#include "bimetal/launch/ssh/hosts.h"

namespace bimetal::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHostsLookEvery{200}, kLookElsewhereEvery{400};
/// Once a rank has failed, each host is asked whether it is there: a cable may be the cause.
constexpr milliseconds kAskEvery{500}, kToAnswer{2'000}, kSuspended{1'000};
/// For ranks to end that have been killed.
constexpr milliseconds kAfterKill{10'000};
/// For the others once one rank has ended at the user's request: checkpoints take a while.
constexpr milliseconds kAfterInterrupt{120'000};
/// For the others to end that go no further without a lost rank of an elastic job.
constexpr milliseconds kToFollow{1'000};

/// A rank that has ended before the others, which may be about to end for the same reason.
struct Loss {
  Host* host = nullptr;
  RankFailure failure;
  Deadline until;
};

class HostLauncher {
 public:
  HostLauncher(const HostsPlan& plan, SignalWatch& signals)
      : plan_(plan),
        signals_(signals),
        printer_(plan.prefixed),
        hosts_(plan, signals),
        elastic_(plan.elastic) {}
  ~HostLauncher() { printer_.print(); }

  HostsResult run() {
    result_.interrupted = !hosts_.get_ready([this] { turn(); }) || !others_are_ready();
    if (!result_.interrupted) {
      hosts_.start();
      while (hosts_.running() > 0) {
        turn();
        follow_losses();
        hand_on_stop_requests();
        heed_others();
        limit_the_wait();
      }
    }
    print_the_rest();
    prefer_cause_elsewhere();
    result_.elastic = elastic_;
    if (elastic_ && ended_well_) {
      result_.failure.reset();
      lost_.reset();
    }
    if (lost_ && !result_.failure && !result_.interrupted) throw Error(*lost_);
    if (elastic_ && !ended_well_ && !result_.failure) result_.interrupted = true;  // all have left
    return result_;
  }

 private:
  // ---- while they run

  /// Waits for news of any kind and takes it in.
  void turn() {
    const bool room = printer_.has_room();
    wait_for_news(room);
    for (auto& host : hosts_.list()) {
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
    for (const auto& host : hosts_.list()) {
      if (!host.lost) host.connection->add_to(news, room);
    }
    printer_.add_to(news);
    news.wait(kHostsLookEvery);
    signals_.drain();
  }

  void take(Host& host, Message& message) {
    if (hosts_.take(host, message)) return;
    switch (message.kind) {
      case AgentMessage::output: return show(message.rank, OutputStream::out, host, message.text);
      case AgentMessage::errors:
        return show(message.rank, OutputStream::errors, host, message.text);
      case AgentMessage::ended: return note_end(host, message.rank, decode_end(message.text));
      case AgentMessage::elastic: elastic_ = elastic_ || !kill_at_; return;
      case AgentMessage::left:
        result_.left = message.text + (host.connection->here() ? "" : " on " + host.ranks.name);
        return;
      case AgentMessage::failed: throw on_host(host, decode_error(message.text));
      default: return;
    }
  }

  /// An agent's error, with the name by which the user knows its host.
  static Error on_host(const Host& host, const Error& error) {
    if (host.connection->here()) return error;
    return {error.code(), fmt::format("host {}: {}", host.ranks.name, error.what()), error.rank()};
  }

  void note_end(Host& host, int rank, const RankEnd& end) {
    --host.running;
    printer_.end(rank);
    if (!first_end_) first_end_ = Deadline::after(kAfterInterrupt);
    const bool failed = end.exit.status != 0 || end.exit.signal != 0;
    ended_well_ = ended_well_ || !failed;
    if (!failed || result_.interrupted) return;
    if (elastic_) return note_lost(host, {rank, host.ranks.name, end.pid, end.exit});
    const bool first = !result_.failure && !lost_;
    if (first && plan_.others != nullptr) {
      plan_.others->fail({ErrorCode::PeerLost, fmt::format("rank {} (pid {}) {}", rank, end.pid,
                                                           how_it_ended(end.exit))});
    }
    // A killed one is the cause, even if another's complaint about its loss arrived first.
    const bool cause = result_.failure && !killing_ && is_fatal(end.exit.signal) &&
                       !is_fatal(result_.failure->exit.signal);
    // As is one that has begun to end: that takes a rank with much to tidy up longer than those
    // that miss it.
    const bool has_complained = result_.failure && !kill_at_ && rank == complained_;
    if (first) complained_ = printer_.first_to_complain();
    if (first || cause || has_complained) {
      const bool misses = !host.connection->here() && printer_.misses_module(rank);
      result_.failure = RankFailure{rank, host.ranks.name, end.pid, end.exit, misses};
    }
    if (first && complained_.value_or(rank) != rank && hosts_.running() > 0) {
      end_others_at_ = Deadline::after(kToFollow);
    } else if (first || cause || has_complained) {
      end_the_others();
    }
  }

  /// The others go on without it, unless they are about to end, too.
  void note_lost(Host& host, const RankFailure& failure) {
    losses_.push_back({&host, failure, Deadline::after(kToFollow)});
    if (failure.exit.status == kInterruptedStatus) return;
    const bool killed = result_.failure && is_fatal(result_.failure->exit.signal);
    if (!result_.failure || killed) result_.failure = failure;
  }

  void follow_losses() {
    while (!losses_.empty() && losses_.front().until.expired()) {
      const auto [host, failure, until] = losses_.front();
      losses_.erase(losses_.begin());
      const int left = hosts_.running();
      const bool has_left = failure.exit.status == kInterruptedStatus;
      const bool comes_back = !has_left && !host->lost && result_.restarts < plan_.restarts;
      if (left == 0 || result_.interrupted) continue;
      if (!has_left) ++result_.lost;
      plan_.note(fmt::format("rank {} on {} (pid {}) {}; {}{}", failure.rank, failure.host,
                             failure.pid,
                             has_left ? "has left the job" : how_it_ended(failure.exit),
                             counted(left, "rank goes on", "ranks go on"),
                             comes_back ? ", and it is started again" : ""));
      if (!comes_back) continue;
      ++result_.restarts;
      ++host->running;
      host->connection->say({AgentMessage::start, failure.rank});
    }
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
    const Error told(why.code(),
                     fmt::format("{} (ranks {}-{}); the other ranks {}", why.what(),
                                 host.ranks.first_rank, last, elastic_ ? "go on" : "were stopped"));
    if (elastic_) plan_.note(told.what());
    give_up(host, told);
  }

  /// Answers that came while this launcher was suspended have not been read yet.
  void note_answer(Host& host) {
    const auto now = Deadline::Clock::now();
    const bool suspended = now - last_turn_ > kSuspended;
    const bool heard = host.asked && now - host.connection->silent_for() > *host.asked;
    if (suspended || heard) host.asked.reset();
    if (&host == &hosts_.list().back()) last_turn_ = now;
  }

  static bool gives_no_answer(const Host& host) {
    return host.asked && Deadline::Clock::now() - *host.asked > kToAnswer;
  }

  /// Nothing is lost by waiting for a host that may only be slow while ranks elsewhere still end.
  bool others_are_through(const Host& host) const {
    return hosts_.all([&](const Host& other) {
      return &other == &host || other.running == 0 || gives_no_answer(other);
    });
  }

  /// A failure elsewhere may be its cause or follow from it: both are told.
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
    if (!elastic_) end_the_others();
  }

  void beat() {
    if (!next_beat_.expired()) return;
    for (auto& host : hosts_.list()) {
      if (host.connection->here() || !host.hello) continue;
      host.connection->say({AgentMessage::beat});
      if (asks_ && !host.asked) host.asked = Deadline::Clock::now();
    }
    next_beat_ =
        Deadline::after(asks_ ? std::min(kAskEvery, plan_.silence / 4) : plan_.silence / 4);
  }

  // ---- other launchers

  bool others_are_ready() { return plan_.others == nullptr || plan_.others->meet(hosts_.master()); }

  void heed_others() {
    if (plan_.others == nullptr || result_.interrupted || lost_ || !next_look_elsewhere_.expired())
      return;
    next_look_elsewhere_ = Deadline::after(kLookElsewhereEvery);
    const auto why = plan_.others->failure();
    if (!why) return;
    if (why->code() == ErrorCode::Aborted) return stop(SIGINT, why->what(), 0);
    lost_ = why;
    end_the_others();
  }

  /// A failure here, too, may follow from the one that was told first.
  void prefer_cause_elsewhere() {
    if (plan_.others == nullptr || result_.interrupted || !result_.failure) return;
    lost_ = plan_.others->failure();
    if (lost_) result_.failure.reset();
  }

  // ---- ending

  /// `requests`: how many of this machine's user it has taken.
  void stop(int signal, std::string_view why, int requests) {
    result_.interrupted = true;
    requests_heard_ = requests;
    first_end_.reset();
    hosts_.say_to_all(AgentMessage::signal, signal);
    plan_.note(fmt::format("{}; Ctrl-C again kills them", why));
  }

  void end_the_others() {
    if (result_.failure) printer_.name_cause(result_.failure->rank);
    if (kill_at_) return;
    hosts_.say_to_all(AgentMessage::signal, SIGTERM);
    kill_at_ = Deadline::after(plan_.grace);
    asks_ = true;
    next_beat_ = Deadline::after({});
  }

  void kill_all() {
    if (killing_) return;
    hosts_.say_to_all(AgentMessage::kill, 0);
    killing_ = Deadline::after(kAfterKill);
  }

  void hand_on_stop_requests() {
    const int requests = signals_.stop_requests();
    if (requests >= 1 && !result_.interrupted) {
      // A terminal that goes away is no reason that programs expect.
      stop(signals_.first_signal() == SIGINT ? SIGINT : SIGTERM, "stopping the ranks", 1);
      // Ranks of an elastic job may leave it.
      if (plan_.others != nullptr && (!elastic_ || plan_.own == 0)) {
        plan_.others->fail({ErrorCode::Aborted, "the ranks are stopped by Ctrl-C there"});
      }
    }
    if (requests > requests_heard_ && result_.interrupted && !result_.killed) {
      result_.killed = true;
      kill_all();
      // A reader that does not read must not keep the user waiting.
      printer_.mute();
    }
  }

  void limit_the_wait() {
    if (end_others_at_ && end_others_at_->expired()) end_the_others();
    if (kill_at_ && kill_at_->expired()) kill_all();
    if (result_.interrupted && first_end_ && first_end_->expired()) kill_all();
    if (!killing_ || !killing_->expired()) return;
    for (auto& host : hosts_.list()) {
      if (host.running == 0) continue;
      const Error why(
          ErrorCode::PeerLost,
          fmt::format("host {} does not say that its ranks have ended", host.ranks.name));
      plan_.note(why.what());
      give_up(host, why);
    }
  }

  // ---- output

  /// Shows the output of a rank or, with -1, of the host itself.
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
    if (result_.failure && !elastic_) printer_.name_cause(result_.failure->rank);
    const auto left_out = printer_.end();
    const int before = signals_.stop_requests();
    while (!printer_.empty() && signals_.stop_requests() == before) {
      wait_for_news(false);
      printer_.print();
    }
    if (left_out.empty()) return;
    plan_.note(fmt::format("left out: what {} {} said of it",
                           left_out.size() > 1 ? "ranks" : "rank", fmt::join(left_out, ", ")));
  }

  const HostsPlan& plan_;
  SignalWatch& signals_;
  RankPrinter printer_;
  Hosts hosts_;
  std::optional<Error> lost_;
  bool elastic_, ended_well_ = false;
  std::vector<Loss> losses_;
  int requests_heard_ = 0;
  std::optional<int> complained_;  ///< the rank whose traceback came before the first failure
  std::optional<Deadline> first_end_, end_others_at_, kill_at_, killing_;
  Deadline next_beat_ = Deadline::after({}), next_look_elsewhere_ = Deadline::after({});
  bool asks_ = false;  ///< hosts have to answer: a rank has failed
  Deadline::Clock::time_point last_turn_ = Deadline::Clock::now();
  HostsResult result_;
};

}  // namespace

HostsResult run_on_hosts(const HostsPlan& plan, SignalWatch& signals) {
  return HostLauncher(plan, signals).run();
}

}  // namespace bimetal::launch
