#pragma once
// Starts the ranks of this machine as child processes, watches over them, and says why a job
// failed.

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace bimetal::launch {

/// For LocalRank::copy: there is none; it is on another machine.
inline constexpr int kNoCopy = -1, kCopyElsewhere = -2;

struct LocalRank {
  std::string name;                  ///< for messages: the rank's device
  std::vector<std::string> command;  ///< command[0] is the path of the program
  /// The job goes on without it: its end, good or bad, ends nobody else. The job fails for want of
  /// such ranks only when none of them ended well and no other rank did.
  bool expendable = false;
  /// Index in the plan of another rank that can do this one's work: while that one runs, or if it
  /// ends well, this one's failure is none of the job's. kCopyElsewhere: what
  /// becomes of it is seen by what becomes of the other ranks here, which fail without it.
  int copy = kNoCopy;
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< for it alone
};

struct LaunchPlan {
  std::vector<LocalRank> ranks;  ///< of this machine, in the order of their rank numbers
  int first_rank = 0;            ///< number of the first of them
  int world_size = 1;            ///< over all machines
  bool only_these = true;        ///< no expendable rank can come from elsewhere
  net::Endpoint store;           ///< where the launcher's store is served
  net::Token token;              ///< handed on by environment variable, never on a command line
  std::vector<std::pair<std::string, std::string>>
      environment;  ///< for every rank, beside RANK etc.
  /// Told at once, and only once, of each rank that has failed or been killed, by its index in
  /// `ranks`, so that others need not wait for it. Must not throw.
  std::function<void(int index, const Error& how)> on_failure = {};
  /// Whether the job is done. It is asked now and then, since ranks on other machines may finish
  /// before those here. Empty: the job is done when the ranks here have ended. Must not throw.
  std::function<bool()> over = {};

  /// How long ranks may take to end by themselves when another one has failed, or has finished,
  /// before they are killed. Ranks that save a lost one's state (RankStatus::rescue) may take
  /// `longest_rescue`, as they watch each other; when the first of them has ended, this again.
  std::chrono::milliseconds grace_after_failure{std::chrono::seconds(10)};
  std::chrono::milliseconds longest_rescue{std::chrono::minutes(30)};
  /// The same for the rank that the failed one has waited for in vain (Error(Timeout) names it): it
  /// is stopped, most likely, and nobody waits for it any more.
  std::chrono::milliseconds grace_when_stuck{std::chrono::seconds(1)};
  std::chrono::milliseconds grace_after_finish{std::chrono::seconds(120)};
  /// The same once the job is over: everybody has been told to end by then.
  std::chrono::milliseconds grace_after_over{std::chrono::seconds(10)};
  std::chrono::milliseconds ask_whether_over_every{std::chrono::seconds(1)};
};

struct LaunchResult {
  bool interrupted = false;  ///< ended by the user's (or the system's) request
  bool killed = false;       ///< at the second request: without a last checkpoint
  std::string rescue = {};   ///< the fate of a lost rank's state; empty: nobody had a copy
  std::string last_checkpoint = {};  ///< newest that a rank reported; empty where there is none
  std::vector<std::string> left_behind = {};  ///< names of those killed for being there when it was
                                              ///< over: stopped, for one
};

// Which of several failures to tell the user about. One rank's end makes all others fail as well;
// the first cause is the one that helps. Pure.

/// How one local rank ended.
struct RankOutcome {
  int rank = 0;
  std::string name;  ///< its device: "cpu:threads=1"
  int pid = 0;
  ProcessExit exit;
  bool killed_by_us = false;   ///< the launcher had to end it: no cause of its own
  std::optional<Error> error;  ///< its own report before it ended
};

/// The error that its failure is told as. It names the rank and its device.
Error error_of(const RankOutcome& outcome, int world_size);

struct RootCause {
  Error error;
  /// Whether it happened here. A lost peer, a missed deadline or an aborted operation only shows
  /// that there is a cause elsewhere.
  bool first_hand = true;
};

/// The failure that stands for the whole job, or nothing if every rank ended well. The order of
/// preference is: a rank killed by a signal or ended without a word; an error of its own; a
/// deadline that passed; a lost peer; an operation that another rank aborted. The message names the
/// rank and its device, unless all ranks report the same. `interrupted`: the user asked for the
/// end, so that ends by that signal are no failures.
std::optional<RootCause> root_cause(std::span<const RankOutcome> outcomes, int world_size,
                                    bool interrupted);

/// A failed job: the root cause, as an Error, and where to go on from.
class JobFailed : public Error {
 public:
  JobFailed(const RootCause& cause, std::string last_checkpoint, std::string rescue = {})
      : Error(cause.error),
        first_hand_(cause.first_hand),
        last_checkpoint_(std::move(last_checkpoint)),
        rescue_(std::move(rescue)) {}

  bool first_hand() const noexcept { return first_hand_; }  ///< see RootCause
  const std::string& last_checkpoint() const noexcept { return last_checkpoint_; }
  const std::string& rescue() const noexcept { return rescue_; }  ///< see LaunchResult

 private:
  bool first_hand_;
  std::string last_checkpoint_, rescue_;
};

/// Runs the ranks and returns when the last one has ended; none is left behind, whatever happens.
/// The first request to stop (see SignalWatch) is handed on to the ranks, which save a checkpoint
/// and end; `on_stop_request` is called then. A second one kills them. A rank whose launcher is
/// itself killed ends at once (watch_lifeline() in status_pipe.h). Throws JobFailed.
LaunchResult run_ranks(const LaunchPlan& plan, SignalWatch& signals,
                       const std::function<void()>& on_stop_request = {});

}  // namespace bimetal::launch
