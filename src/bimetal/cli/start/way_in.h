#pragma once
// The way of a machine into a job that waits on another one, whatever the job is: found, let in,
// and told to start.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/job_board.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace CLI {
class App;
}

namespace bimetal::cli {

struct JoinOptions {
  std::string host, token_file;
  double join_timeout_s = 60;
  // Of a job by `bimetal launch`.
  std::optional<int> ranks;
  std::vector<std::string> command;  ///< what this machine runs; empty: the job's script
};

/// HOST, --token-file, --join-timeout and --encrypt, and of launched jobs -n and COMMAND.
void add_join_options(CLI::App& command, JoinOptions& options);

/// Where the job's store is, and how one is let in there.
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

}  // namespace bimetal::cli
