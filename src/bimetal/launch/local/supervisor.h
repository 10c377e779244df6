#pragma once
// Ranks of this machine as processes, from their start to their end. Others interpret their output
// and their ends: the launcher of a job's own ranks (local_launcher.h), and the agent that starts
// any command for a launcher, which may be on another machine (host_agent.h).

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {

/// One of them. Killed with all of its group when destroyed.
class RankProcess {
 public:
  int rank() const noexcept { return rank_; }
  int pid() const noexcept { return process_.pid(); }
  bool running() const noexcept { return !exit_; }
  /// Once it does not run any more.
  const ProcessExit& exit() const { return *exit_; }
  /// It has ended by itself, with this status.
  bool ended_with(int status) const noexcept {
    return exit_ && exit_->signal == 0 && exit_->status == status;
  }

  /// To the rank, or to all that it has started, too. Nothing once it has ended.
  void send(int signal);
  void send_to_group(int signal);
  void kill() { send_to_group(kKillSignal); }

 private:
  friend class Supervisor;
  RankProcess(int rank, Process process, std::vector<FileDescriptor> streams)
      : rank_(rank), process_(std::move(process)), streams_(std::move(streams)) {}
  std::string read(std::size_t stream);

  int rank_;
  Process process_;
  std::vector<FileDescriptor> streams_;
  std::optional<ProcessExit> exit_;
};

/// Use from one thread. None of its ranks outlives it.
class Supervisor {
 public:
  /// Gets the bytes that a rank has written to one of the descriptors that are read, by their
  /// order.
  using Said = std::function<void(RankProcess& rank, std::size_t stream, std::string bytes)>;
  /// It has ended, and said all.
  using Ended = std::function<void(RankProcess& rank)>;
  /// Without it, what running ranks say stays where it is.
  using HasRoom = std::function<bool()>;

  /// `signals` must outlive it.
  Supervisor(
      SignalWatch& signals, Said said, Ended ended, HasRoom has_room = [] { return true; })
      : signals_(signals),
        said_(std::move(said)),
        ended_(std::move(ended)),
        has_room_(std::move(has_room)) {}

  /// Starts one. Output to the descriptors `listened_to`, numbers in the rank, is read here. The
  /// error names the rank and, unless that is empty, its device.
  RankProcess& start(int rank, const std::string& name, ProcessCommand command,
                     const std::vector<int>& listened_to);

  bool any_running() const;

  /// Until there is news of the ranks, of `others` or a signal, or a fifth of a second has passed.
  void wait(WaitSet& others);
  /// Takes in the ranks' output and ends so far.
  void look();

  template <typename What>
  void each(const What& what) {
    for (auto& rank : ranks_) what(rank);
  }
  void kill();

 private:
  SignalWatch& signals_;
  Said said_;
  Ended ended_;
  HasRoom has_room_;
  std::deque<RankProcess> ranks_;
};

}  // namespace bimetal::launch
