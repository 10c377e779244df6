#pragma once
// The way of a machine into a job that waits on another one, whatever the job is: found, let in,
// and told to start.
//
// `bimetal launch` on machines whose users let each other in: each starts its own ranks, with its
// own copy of the script.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/start/share.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/job_board.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/ssh/host_launcher.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace CLI {
class App;
}

namespace bimetal::cli {

struct JoinOptions {
  std::string host, token_file;
  double join_timeout_s = 60;
  // For a job of `bimetal launch`.
  std::optional<int> ranks;
  std::vector<std::string> command;  ///< what this machine runs; empty: the job's script
};

/// HOST, --token-file, --join-timeout and --encrypt, and of launched jobs -n and COMMAND.
void add_join_options(CLI::App& command, JoinOptions& options);

/// The address of the job's store, and how to be let in there.
struct WayIn {
  net::Endpoint store;
  net::Token token;
};

/// The job as its board shows it. The machine of `options` is the one that the user chooses, if
/// none was named. Errors: nobody there (Timeout), not let in (Unauthorized), another version there
/// (ProtocolMismatch).
class JobToJoin {
 public:
  JobToJoin(JoinOptions& options, Terminal& terminal);

  bool is_launch() const { return !offer.command.empty(); }

  const WayIn way;
  const std::string name;  ///< the host, as the user calls it
  launch::JobStore store;
  launch::JobBoard board;
  const launch::JobOffer offer;

 private:
  JobToJoin(JoinOptions& options, Terminal& terminal, Deadline deadline);
};

/// Waits for the host's sign. False if the user gave up. Errors: Timeout; Aborted where the host
/// has given up.
bool wait_for_start(JobToJoin& job, launch::SignalWatch& signals, double timeout_s);

/// Says goodbye to the host, however the job ends.
class Leaving {
 public:
  explicit Leaving(launch::JobBoard& board) : board_(board) {}
  ~Leaving() {
    try {
      board_.leave();
    } catch (const std::exception&) {
      // The host is gone already.
    }
  }

 private:
  launch::JobBoard& board_;
};

/// The first machine, with the first `ranks` of `world_size` ranks. Waits for the others, runs
/// `plan`, and stays until all have ended. Errors: those of HostMeeting and launch::run_on_hosts,
/// and a failure on another machine. Exit status as of run_and_tell().
int share_launch(launch::HostsPlan plan, int ranks, int world_size, const HostOptions& options);

/// Another machine of such a job. Without a command of its own it runs a script of its own folder
/// that is called like the job's, as what arrives from a peer is not executed.
int join_launch(JobToJoin& job, const JoinOptions& options, launch::SignalWatch& signals);

/// `bimetal join` where there is no more of the program than this.
void add_join_launch(CLI::App& app, Action& action);

}  // namespace bimetal::cli
