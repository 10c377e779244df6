#pragma once
// Hands a job's figures on to experiment trackers (docs/trackers.md), by a process in Python that
// reads the job's monitor as a browser does. This program knows none of them.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/cli/rank/rank_request.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/progress/observer.h"

namespace bimetal::cli {

/// Those of [monitor] trackers for which that process is needed. By default trackio, if rank 0's
/// Python has it and the run is one that somebody has asked for (no demo, no measurement).
std::vector<std::string> trackers_of(const RankRequest& request);

/// The folder of TensorBoard's scalars: [monitor] tensorboard_dir. If that is not set and
/// TensorBoard is among the trackers, a folder beside the checkpoints. Empty: none.
std::string tensorboard_folder(const job::JobConfig& job);

/// How the run has ended, in the words of trackers.
enum class RunEnd { finished, interrupted, moved, failed };

/// That process. The job goes on even if that process fails: the terminal tells of it. The job
/// waits for it only at the end, a few seconds. Use from one thread.
class Trackers final : public progress::Observer {
 public:
  /// Starts it. `monitor` listens; both others must outlive this. The terminal tells of a tracker
  /// that cannot be started.
  Trackers(const RankRequest& request, monitor::Monitor& monitor, Terminal& terminal);
  /// A run that has not ended has failed.
  ~Trackers() override;
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  /// Waits for the rest to be handed on, while the process shows that it is at work.
  void end(RunEnd how);

  /// Both only look whether there is something to tell, now and then.
  void on_phase(const std::string& what) override;
  void on_step(const progress::Progress& progress) override;

 private:
  class Child;

  void look();

  Terminal& terminal_;
  Deadline next_look_ = Deadline::after(std::chrono::milliseconds(0));
  std::unique_ptr<Child> child_;  ///< none: it has ended
};

}  // namespace bimetal::cli
