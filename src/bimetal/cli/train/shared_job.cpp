#include "bimetal/cli/train/shared_job.h"

#include <stdlib.h>

#include <asio/ip/host_name.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "bimetal/cli/train/local_ranks.h"

namespace bimetal::cli {
namespace {

/// How long to wait for another machine to say what went wrong there; and for a first sign that it
/// has noticed anything, which a machine that is off or cut off never gives.
constexpr std::chrono::milliseconds kForTheCause{3000}, kForASign{500};

std::optional<Error> cause_from_elsewhere(launch::JobBoard& board, const Error& seen_here,
                                          launch::SignalWatch& signals) {
  board.know_no_cause();
  // Who aborts an operation can speak, and may be about to say more.
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
      // Whoever cannot be told is told nothing else either.
    }
  }

 private:
  launch::JobBoard& board_;
  bool left_ = false;
};

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
    // The store is gone with the host; what this machine saw is then the best there is to tell.
  }
  return with_resume_hint(failure);
}

}  // namespace

void add_encrypt(CLI::App& command, const std::string& group) {
  command
      .add_flag_callback(
          "--encrypt", [] { ::setenv("BIMETAL_ENCRYPTION", "on", 1); },
          "Encrypt all connections of the job; the same on every machine")
      ->group(group);
}

std::string own_host_name() {
  return asio::ip::host_name();
}

int run_shared_job(const launch::LaunchPlan& plan, launch::JobBoard& board,
                   launch::SignalWatch& signals) {
  TroubleNote trouble(board);
  try {
    return conclude(launch::run_ranks(trouble.watch(plan), signals, announce_stop));
  } catch (const launch::JobFailed& failure) {
    trouble.leave();
    throw agreed_cause(failure, board, signals);
  }
}

}  // namespace bimetal::cli
