#pragma once
// A machine that has given workers to a job of parameter servers looks whether that job is still
// there: it may end while a worker here is only starting, or meets nobody any more.

#include <optional>
#include <string>

#include "bimetal/cli/train/local_ranks.h"
#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/launch/local/signal_watch.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {

/// Use from one thread.
class GuestWatch {
 public:
  /// `host`: as the user has written it. `copies`: the job outlives its first machine. `store` must
  /// outlive it.
  GuestWatch(rendezvous::Store& store, std::string host, bool copies)
      : store_(store), host_(std::move(host)), copies_(copies) {}

  /// Whether there is nothing more to do here: the job is done, or its first machine is gone.
  bool over();

  /// Runs the workers, which have a second to end once the job is over, says that it is, and gives
  /// the exit status. Errors: launch::JobFailed; PeerLost where the job's machine is gone, and what
  /// was wrong with the workers follows from that.
  int run(launch::LaunchPlan plan, launch::SignalWatch& signals);

 private:
  enum class Job { there, ended, gone };

  /// `seen_here`: what a worker says of it; empty if none does.
  Error gone_error(const std::string& seen_here) const;

  rendezvous::Store& store_;
  std::string host_;
  bool copies_;
  Job job_ = Job::there;
};

}  // namespace bimetal::cli
