#include "bimetal/cli/start/run_job.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::seconds kToOwnStore{10};
/// How long to wait for another machine to say what went wrong there; and for a first sign that it
/// has noticed anything, which a machine that is off or cut off never gives.
constexpr std::chrono::milliseconds kForTheCause{3000}, kForASign{500};

std::optional<Error> cause_from_elsewhere(launch::JobBoard& board, const Error& seen_here,
                                          launch::SignalWatch& signals) {
  board.know_no_cause();
  // A rank that aborts an operation is alive, and may be about to say more.
  const auto for_a_sign =
      Deadline::after(seen_here.code() == ErrorCode::Aborted ? kForTheCause : kForASign);
  const auto deadline = Deadline::after(kForTheCause);
  do {
    if (auto cause = board.failure()) return cause;
    signals.pause(std::chrono::milliseconds(50));
  } while (!deadline.expired() && (!for_a_sign.expired() || board.cause_may_come()));
  return std::nullopt;
}

/// Tells the other machines of the first failure here when it is there, not when all ranks have
/// ended.
class TroubleNote {
 public:
  explicit TroubleNote(launch::JobBoard& board) : board_(board) {}

  /// The same plan; both this object and `plan` must outlive its launch.
  launch::LaunchPlan watch(const launch::LaunchPlan& plan) {
    auto watched = plan;
    watched.on_failure = [this, &plan](int index, const Error& how) {
      const auto& rank = plan.ranks[static_cast<std::size_t>(index)];
      if (!rank.expendable && rank.copy == launch::kNoCopy) leave();
      if (plan.on_failure) plan.on_failure(index, how);
    };
    return watched;
  }

  void leave() noexcept {
    if (std::exchange(left_, true)) return;
    try {
      board_.note_trouble();
    } catch (const std::exception&) {
      // A launcher that cannot be told this is told nothing else either.
    }
  }

 private:
  launch::JobBoard& board_;
  bool left_ = false;
};

/// A failed job's message with where to go on from: what main prints.
Error with_resume_hint(const launch::JobFailed& failure) {
  std::string text = failure.what();
  if (!failure.rescue().empty()) text += fmt::format("\n  Of zero.copies: {}", failure.rescue());
  // The checkpoint may have been lost with the cause of the failure.
  std::error_code gone;
  if (const auto& checkpoint = failure.last_checkpoint();
      std::filesystem::is_directory(checkpoint, gone)) {
    text += fmt::format("\n  Last checkpoint: {0}; go on with --resume {0}", checkpoint);
  }
  return {failure.code(), text, failure.rank()};
}

/// Ranks that train agree on their end, and all say so. Others just end, and the other machines are
/// to know why.
void tell_of_stop(const RankRequest& request, launch::JobBoard& board) {
  announce_stop(request);
  if (request.work == Work::train) return;
  try {
    board.fail({ErrorCode::Aborted, "stopped by Ctrl-C there"}, own_host_name());
  } catch (const Error&) {
    // A process that cannot be told sees that these ranks are gone.
  }
}

/// The failure that this machine's terminal shows.
Error agreed_cause(const launch::JobFailed& failure, launch::JobBoard& board,
                   launch::SignalWatch& signals) {
  try {
    if (failure.first_hand()) {
      board.fail(failure, own_host_name());
    } else if (const auto cause = cause_from_elsewhere(board, failure, signals)) {
      return with_resume_hint({{*cause, false}, failure.last_checkpoint(), failure.rescue()});
    }
  } catch (const Error&) {
    // The store is gone with the host; this machine's own error is then the best one to tell.
  }
  return with_resume_hint(failure);
}

}  // namespace

int run_local_job(const LocalRanks& ranks, launch::SignalWatch& signals, const net::Token& token) {
  auto plan = plan_of(ranks);
  plan.token = token.empty() ? net::Token::generate() : token;
  const rendezvous::StoreServer server({"127.0.0.1", 0}, plan.token);
  plan.world_size = static_cast<int>(plan.ranks.size());
  plan.store = server.endpoint();
  std::unique_ptr<rendezvous::Store> store;
  if (plan.world_size > 1) {
    store = rendezvous::connect_store(plan.store, plan.token, Deadline::after(kToOwnStore));
    tell_of_failed_ranks(plan, ranks, *store);
  }
  try {
    return conclude(launch::run_ranks(plan, signals, [&] { announce_stop(ranks.request); }));
  } catch (const launch::JobFailed& failure) {
    throw with_resume_hint(failure);
  }
}

int run_shared_job(const launch::LaunchPlan& plan, const RankRequest& request,
                   launch::JobBoard& board, launch::SignalWatch& signals) {
  TroubleNote trouble(board);
  try {
    return conclude(
        launch::run_ranks(trouble.watch(plan), signals, [&] { tell_of_stop(request, board); }));
  } catch (const launch::JobFailed& failure) {
    trouble.leave();
    throw agreed_cause(failure, board, signals);
  }
}

int conclude(const launch::LaunchResult& result) {
  for (const auto& name : result.left_behind) {
    print_to_errors(fmt::format(
        "bimetal: {} did not end with the job, which is done; it was stopped or stuck, and has "
        "been killed",
        name));
  }
  if (!result.interrupted) return kSuccess;
  if (!result.killed) {
    print_to_errors("bimetal: interrupted");
  } else if (result.last_checkpoint.empty()) {
    print_to_errors("bimetal: ended at once");
  } else {
    print_to_errors(
        fmt::format("bimetal: ended at once; the last checkpoint is {0}; go on with --resume {0}",
                    result.last_checkpoint));
  }
  return kInterrupted;
}

void announce_stop(const RankRequest& request) {
  if (request.work != Work::train) return;
  if (request.elastic && request.joined) {
    print_to_errors(
        "bimetal: leaving after this step; the others go on with the job; Ctrl-C again ends at "
        "once");
    return;
  }
  print_to_errors(
      "bimetal: stopping after this step, with a checkpoint where the job has them; Ctrl-C again "
      "ends at once");
}

}  // namespace bimetal::cli
