#include "bimetal/launch/local/local_launcher.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/local/supervisor.h"

namespace bimetal::launch {
namespace {

// The numbers under which a rank finds its ends of the pipes.
constexpr int kLifelineInRank = 3;
constexpr int kStatusInRank = 4;

/// One rank of this machine, and its reports.
class LocalProcess {
 public:
  LocalProcess(Supervisor& supervisor, const LaunchPlan& plan, int local_rank,
               const FileDescriptor& lifeline)
      : plan_(plan.ranks[static_cast<std::size_t>(local_rank)]),
        process_(supervisor.start(plan.first_rank + local_rank, plan_.name,
                                  {.argv = plan_.command,
                                   .environment = environment(plan, local_rank),
                                   .descriptors = {{kLifelineInRank, lifeline.number()}}},
                                  {kStatusInRank})) {}

  bool running() const noexcept { return process_.running(); }
  bool expendable() const noexcept { return plan_.expendable; }
  int copy() const noexcept { return plan_.copy; }
  /// It has failed, and another one has gone on in its place: what ends the job later is not that.
  void pass_over() noexcept { passed_over_ = true; }
  bool passed_over() const noexcept { return passed_over_; }
  /// The job is done, and it does not end: it is killed, and that is no failure.
  void leave_behind() {
    left_behind_ = running();
    kill();
  }
  bool left_behind() const noexcept { return left_behind_; }
  const std::string& name() const noexcept { return plan_.name; }
  bool done() const noexcept { return process_.ended_with(0); }
  bool interrupted() const noexcept { return process_.ended_with(kInterruptedStatus); }
  bool ended_well() const noexcept { return done() || interrupted(); }
  const RankStatus& status() const noexcept { return status_; }
  /// It saves a lost rank's state, or has done so.
  bool rescuer() const noexcept { return status_.rescue().has_value(); }
  bool rescuing() const noexcept {
    return running() && rescuer() && status_.rescue()->state == progress::Rescue::State::Saving;
  }
  /// The rank that it has failed for having waited for.
  std::optional<int> found_stuck() const {
    const auto& error = status_.error();
    return !running() && error && error->code() == ErrorCode::Timeout ? error->rank()
                                                                      : std::nullopt;
  }

  void hear(std::string_view bytes) { status_.feed(bytes); }
  void ask_to_stop() { process_.send(SIGINT); }

  void kill() {
    killed_by_us_ = killed_by_us_ || running();
    process_.kill();
  }

  RankOutcome outcome() const {
    return {process_.rank(), name(),        process_.pid(),
            process_.exit(), killed_by_us_, status_.error()};
  }

 private:
  static std::vector<std::pair<std::string, std::string>> environment(const LaunchPlan& plan,
                                                                      int local_rank) {
    auto variables = plan.environment;
    const auto& own = plan.ranks[static_cast<std::size_t>(local_rank)].environment;
    variables.insert(variables.end(), own.begin(), own.end());
    variables.insert(variables.end(), {{"RANK", std::to_string(plan.first_rank + local_rank)},
                                       {"WORLD_SIZE", std::to_string(plan.world_size)},
                                       {"LOCAL_RANK", std::to_string(local_rank)},
                                       {"LOCAL_WORLD_SIZE", std::to_string(plan.ranks.size())},
                                       {"MASTER_ADDR", plan.store.host},
                                       {"MASTER_PORT", std::to_string(plan.store.port)},
                                       {"BIMETAL_STORE", "launcher"},
                                       {"BIMETAL_TOKEN", std::string(plan.token.text())},
                                       {"BIMETAL_TOKEN_FILE", ""},
                                       {kLifelineVariable, std::to_string(kLifelineInRank)},
                                       {kStatusVariable, std::to_string(kStatusInRank)}});
    return variables;
  }

  const LocalRank& plan_;
  RankProcess& process_;
  RankStatus status_;
  bool killed_by_us_ = false, passed_over_ = false, left_behind_ = false;
};

/// One call of run_ranks.
class Launch {
 public:
  Launch(const LaunchPlan& plan, SignalWatch& signals, const std::function<void()>& on_stop_request)
      : plan_(plan),
        signals_(signals),
        on_stop_request_(on_stop_request),
        lifeline_(Pipe::create()),
        supervisor_(
            signals,
            [this](const auto& rank, std::size_t, const auto& bytes) { at(rank).hear(bytes); },
            [this](const auto& rank) { note_end(rank.rank() - plan_.first_rank); }) {}

  LaunchResult run() {
    for (int i = 0; i < static_cast<int>(plan_.ranks.size()); ++i) start(i);
    while (supervisor_.any_running()) {
      hand_on_stop_requests();
      limit_the_wait();
      WaitSet nothing_else;
      supervisor_.wait(nothing_else);
      supervisor_.look();
      for (auto& rank : ranks_) {
        if (stood_in_for(rank)) rank.pass_over();
      }
    }
    conclude();
    return result_;
  }

 private:
  void start(int index) {
    try {
      ranks_.emplace_back(supervisor_, plan_, index, lifeline_.read);
    } catch (const Error& cause) {
      if (plan_.on_failure) plan_.on_failure(index, cause);
      throw JobFailed({cause}, {});
    }
  }

  LocalProcess& at(const RankProcess& rank) {
    return ranks_[static_cast<std::size_t>(rank.rank() - plan_.first_rank)];
  }

  void note_end(int index) {
    last_end_ = index;
    const auto& rank = ranks_[static_cast<std::size_t>(index)];
    if (rank.ended_well() || rank.left_behind() || !plan_.on_failure) return;
    plan_.on_failure(index, error_of(rank.outcome(), plan_.world_size));
  }

  void kill_all() {
    for (auto& rank : ranks_) rank.kill();
  }

  void hand_on_stop_requests() {
    const int requests = signals_.stop_requests();
    if (requests >= 1 && !result_.interrupted) {
      result_.interrupted = true;
      for (auto& rank : ranks_) rank.ask_to_stop();
      if (on_stop_request_) on_stop_request_();
    }
    if (requests >= 2 && !result_.killed) {
      result_.killed = true;
      kill_all();
    }
  }

  /// It has failed, but another one does its work.
  bool stood_in_for(const LocalProcess& rank) const {
    if (rank.running() || rank.ended_well() || rank.copy() == kNoCopy) return false;
    const auto goes_on = [](const LocalProcess& other) {
      return other.running() || other.ended_well();
    };
    if (rank.copy() == kCopyElsewhere) return std::ranges::any_of(ranks_, goes_on);
    return goes_on(ranks_[static_cast<std::size_t>(rank.copy())]);
  }

  /// The first rank that ends starts the clock for the others; a failure shortens it.
  void limit_the_wait() {
    // A job of ranks that come and go is without hope when the last of them has failed.
    const bool hopeless = std::none_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
      return rank.expendable() && (rank.running() || rank.ended_well());
    });
    for (const auto& rank : ranks_) {
      // One that may leave, and has not left but ended, has been told that the job is done.
      if (rank.done() && !first_end_) first_end_ = Deadline::after(plan_.grace_after_finish);
      if (rank.running() || (rank.expendable() && !hopeless) || stood_in_for(rank)) continue;
      if (rank.expendable() && !plan_.only_these) continue;
      const bool failed = !rank.ended_well() && !result_.interrupted;
      if (failed && !first_failure_) first_failure_ = Deadline::after(plan_.grace_after_failure);
      if (failed) note_stuck(rank.found_stuck());
      if (!failed && !first_end_) first_end_ = Deadline::after(plan_.grace_after_finish);
    }
    end_what_is_left();
    limit_the_rescue();
    for (const auto& [rank, until] : stuck_) {
      if (until.expired() && !excused(ranks_[rank])) ranks_[rank].kill();
    }
    overdue_ = first_end_ && first_end_->expired();
    const bool saving =
        std::ranges::any_of(ranks_, [this](const auto& rank) { return excused(rank); });
    if (overdue_ || (first_failure_ && first_failure_->expired() && !saving)) kill_all();
  }

  /// They end together, and watch each other until then; nobody watches the last one.
  void limit_the_rescue() {
    for (const auto& rank : ranks_) {
      if (!rank.rescuer()) continue;
      if (!rescue_) rescue_ = Deadline::after(plan_.longest_rescue);
      if (rank.running() || rescuer_ended_) continue;
      rescuer_ended_ = true;
      rescue_ = min(*rescue_, Deadline::after(plan_.grace_after_failure));
    }
  }

  /// It may go on, though others have failed: it saves the state of one of them.
  bool excused(const LocalProcess& rank) const {
    return rank.rescuing() && rescue_ && !rescue_->expired();
  }

  void note_stuck(std::optional<int> rank) {
    const int at = rank.value_or(-1) - plan_.first_rank;
    if (at < 0 || at >= static_cast<int>(ranks_.size())) return;
    stuck_.try_emplace(static_cast<std::size_t>(at), Deadline::after(plan_.grace_when_stuck));
  }

  /// For a job that is done elsewhere: ends the ranks here.
  void end_what_is_left() {
    if (!over_by_ && plan_.over && next_question_.expired()) {
      next_question_ = Deadline::after(plan_.ask_whether_over_every);
      if (plan_.over()) over_by_ = Deadline::after(plan_.grace_after_over);
    }
    if (!over_by_ || !over_by_->expired()) return;
    for (auto& rank : ranks_) {
      if (rank.running() && !rank.left_behind()) rank.leave_behind();
    }
  }

  void conclude() {
    std::vector<RankOutcome> outcomes, to_blame;
    const bool any_essential = std::any_of(ranks_.begin(), ranks_.end(),
                                           [](const auto& rank) { return !rank.expendable(); });
    const bool any_done = std::ranges::any_of(
        ranks_, [](const auto& rank) { return rank.expendable() && rank.done(); });
    for (const auto& rank : ranks_) {
      outcomes.push_back(rank.outcome());
      if (rank.left_behind()) result_.left_behind.push_back(rank.name());
      if (!rank.passed_over()) to_blame.push_back(outcomes.back());
      // Also at a request that did not pass through this launcher: one of another machine's. A rank
      // that has left a job that others have finished has not ended it.
      result_.interrupted |=
          rank.interrupted() && (!rank.expendable() || (!any_essential && !any_done));
      const auto& checkpoint = rank.status().last_checkpoint();
      if (!checkpoint.empty()) result_.last_checkpoint = checkpoint;
      note_rescue(rank.status());
    }
    if (result_.killed) return;
    const auto essential_failed = [this](const auto& rank) {
      return !rank.expendable() && !rank.ended_well() && !rank.left_behind() && !stood_in_for(rank);
    };
    if (any_essential && std::none_of(ranks_.begin(), ranks_.end(), essential_failed)) return;
    if (!any_essential && (any_done || stopped())) return;
    auto cause = root_cause(to_blame, plan_.world_size, result_.interrupted);
    if (!cause) cause = root_cause(outcomes, plan_.world_size, result_.interrupted);
    if (!cause && overdue_) {
      cause = {Error(ErrorCode::Timeout,
                     "some ranks did not end after the others had, and were killed")};
    }
    if (cause) throw JobFailed(*cause, result_.last_checkpoint, result_.rescue);
  }

  /// Those who had gone on ended because somebody asked for it, whatever had become of others.
  bool stopped() const {
    return last_end_ >= 0 && ranks_[static_cast<std::size_t>(last_end_)].interrupted();
  }

  /// One rank reports the save. One rank's failure means little once another has saved.
  void note_rescue(const RankStatus& status) {
    const auto& rescue = status.rescue();
    if (!rescue) return;
    if (rescue->state == progress::Rescue::State::Saved) {
      result_.last_checkpoint = rescue->path;
      result_.rescue = fmt::format("what rank {} had has been saved from its copy, at step {}",
                                   rescue->lost, rescue->step);
    } else if (rescue->state == progress::Rescue::State::Failed && result_.rescue.empty()) {
      result_.rescue = "no later step could be saved: " + rescue->cause;
    }
  }

  const LaunchPlan& plan_;
  SignalWatch& signals_;
  const std::function<void()>& on_stop_request_;
  Pipe lifeline_;
  Supervisor supervisor_;
  std::vector<LocalProcess> ranks_;
  std::optional<Deadline> first_end_, first_failure_, over_by_, rescue_;
  std::map<std::size_t, Deadline> stuck_;  ///< which of ranks_, until when
  Deadline next_question_ = Deadline::at({});
  bool overdue_ = false, rescuer_ended_ = false;
  int last_end_ = -1;  ///< index of the rank that ended last
  LaunchResult result_;
};

}  // namespace

LaunchResult run_ranks(const LaunchPlan& plan, SignalWatch& signals,
                       const std::function<void()>& on_stop_request) {
  return Launch(plan, signals, on_stop_request).run();
}

namespace {

constexpr int kEndedWithoutAWord = 0, kOwnError = 1;

/// How far an outcome is from the cause; see the header for the order.
int distance(const RankOutcome& outcome) {
  if (!outcome.error) return kEndedWithoutAWord;
  switch (outcome.error->code()) {
    case ErrorCode::Timeout: return 2;
    case ErrorCode::PeerLost: return 3;
    case ErrorCode::Aborted: return 4;
    default: return kOwnError;
  }
}

bool ended_well(const ProcessExit& exit) {
  return exit.signal == 0 && (exit.status == 0 || exit.status == kInterruptedStatus);
}

bool failed(const RankOutcome& outcome, bool interrupted) {
  if (outcome.killed_by_us) return false;
  if (!interrupted) return outcome.error || !ended_well(outcome.exit);
  // After a Ctrl-C ranks leave one by one, and may miss each other; only a failure of the requested
  // work counts, such as writing a checkpoint.
  const int signal = outcome.exit.signal;
  if (outcome.error) return distance(outcome) <= kOwnError;
  return signal != 0 && signal != SIGINT && signal != SIGTERM;
}

std::string describe(const RankOutcome& outcome) {
  return fmt::format("rank {} ({}, pid {})", outcome.rank, outcome.name, outcome.pid);
}

}  // namespace

Error error_of(const RankOutcome& outcome, int world_size) {
  const char* others = world_size > 1 ? "; the other ranks were stopped" : "";
  if (outcome.error) {
    return {outcome.error->code(), fmt::format("{}: {}", describe(outcome), outcome.error->what()),
            outcome.error->rank()};
  }
  if (const int signal = outcome.exit.signal; signal != 0) {
    const char* hint =
        signal == kKillSignal ? ". (The system does this too when memory runs out.)" : "";
    return {ErrorCode::PeerLost,
            fmt::format("{} {}{}{}", describe(outcome), how_it_ended(outcome.exit), others, hint),
            outcome.rank};
  }
  return {ErrorCode::PeerLost,
          fmt::format("{} {} and gave no reason{}", describe(outcome), how_it_ended(outcome.exit),
                      others),
          outcome.rank};
}

std::optional<RootCause> root_cause(std::span<const RankOutcome> outcomes, int world_size,
                                    bool interrupted) {
  std::vector<const RankOutcome*> failures;
  for (const auto& outcome : outcomes) {
    if (failed(outcome, interrupted)) failures.push_back(&outcome);
  }
  if (failures.empty()) return std::nullopt;
  const RankOutcome& cause =
      **std::min_element(failures.begin(), failures.end(),
                         [](const auto* a, const auto* b) { return distance(*a) < distance(*b); });
  const bool all_the_same =
      failures.size() == outcomes.size() &&
      std::all_of(failures.begin(), failures.end(), [&](const RankOutcome* other) {
        return cause.error && other->error && other->error->code() == cause.error->code() &&
               std::string_view(other->error->what()) == cause.error->what();
      });
  return RootCause{all_the_same ? *cause.error : error_of(cause, world_size),
                   distance(cause) <= kOwnError};
}

}  // namespace bimetal::launch
