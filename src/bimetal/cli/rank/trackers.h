#pragma once
// Who hands a job's figures on to experiment trackers (docs/trackers.md): a process in Python that
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

/// Where TensorBoard's scalars go: [monitor] tensorboard_dir, else, if it is among the trackers, a
/// folder beside the checkpoints; empty: nowhere.
std::string tensorboard_folder(const job::JobConfig& job);

/// How the run has ended, in the words of trackers.
enum class RunEnd { finished, interrupted, moved, failed };

/// That process. Whatever becomes of it, the job goes on: it is told of on the terminal, and not
/// waited for but at the end, a few seconds. Use from one thread.
class Trackers final : public progress::Observer {
 public:
  /// Starts it. `monitor` listens; both others must outlive this. What cannot be started is told of
  /// on the terminal.
  Trackers(const RankRequest& request, monitor::Monitor& monitor, Terminal& terminal);
  /// A run that has not ended has failed.
  ~Trackers() override;
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  /// Waits for what is left to be handed on, while the process shows that it is at it.
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
