#pragma once
// One rank of this machine as a process, from its start to its end: for the launcher of a job's own
// ranks (local_launcher.h) and the agent that starts any command for another machine (host_agent.h).

#include <optional>
#include <vector>

#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/system/wait_set.h"

namespace bimetal::launch {

/// Move-only; not thread-safe. Killed with all of its group when destroyed.
class RankProcess {
 public:
  /// Starts it. What it writes to the descriptors `listened_to`, numbers in the rank, is read here.
  /// Error(System) names the program.
  RankProcess(int rank, ProcessCommand command, const std::vector<int>& listened_to);

  int rank() const noexcept { return rank_; }
  int pid() const noexcept { return process_->pid(); }
  bool running() const noexcept { return !exit_; }
  /// Once it does not run any more.
  const ProcessExit& exit() const { return *exit_; }
  /// It has ended by itself, with this status.
  bool ended_with(int status) const noexcept {
    return exit_ && exit_->signal == 0 && exit_->status == status;
  }

  /// Of `listened_to`, in its order. Whoever has read such a stream to its end may close it.
  FileDescriptor& stream(std::size_t index) { return streams_[index]; }

  /// Until it has said something, or ended it.
  void add_to(WaitSet& news) const;

  /// Notices its end, after which all that it has written can be read.
  void look();

  /// To the rank, or to all that it has started, too. Nothing once it has ended.
  void send(int signal);
  void send_to_group(int signal);
  void kill() { send_to_group(kKillSignal); }

 private:
  int rank_;
  std::vector<FileDescriptor> streams_;
  std::optional<Process> process_;
  std::optional<ProcessExit> exit_;
};

}  // namespace bimetal::launch
