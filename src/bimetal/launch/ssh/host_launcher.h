#pragma once
// Runs one command as the ranks of a job on any number of hosts: `bimetal launch`.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/launch/ssh/host_connection.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace bimetal::launch {

/// Launchers of the same job on other machines, which start the ranks there themselves. They may
/// wait for others; errors are the store's by which they do.
class OtherLaunchers {
 public:
  virtual ~OtherLaunchers() = default;

  /// Ranks can start here; the first machine's are to be met at `master`. Returns when those of all
  /// machines can; false if the user gave up.
  virtual bool meet(const net::Endpoint& master) = 0;

  /// Why the job has ended elsewhere: Aborted at the user's request. Asked now and then.
  virtual std::optional<Error> failure() = 0;

  /// The job has ended here. If it had elsewhere before, failure() says that.
  virtual void fail(const Error& why) = 0;
};

struct HostsPlan {
  std::vector<HostRanks> hosts;      ///< at least one; those that are this machine need no ssh
  OtherLaunchers* others = nullptr;  ///< of all `hosts` but one, which is this machine
  std::size_t own = 0;               ///< with `others`: number of that one
  std::vector<std::string> command;  ///< of every rank; command[0] is looked for on each host
  std::string directory;             ///< to start in
  bool directory_is_needed = false;  ///< else the home folder where a host does not have it
  NamedValues environment;           ///< for all ranks, beside RANK etc.
  net::Token token;                  ///< BIMETAL_TOKEN of the ranks; travels through ssh's input
  std::string master_host;           ///< where the ranks meet; empty: an address of the first host
  std::uint16_t master_port = 0;     ///< 0: a free one
  SshOptions ssh;
  std::string version;   ///< of this Bimetal; all hosts must have the same
  bool prefixed = true;  ///< each line begins with its rank
  std::chrono::milliseconds start_timeout{std::chrono::seconds(60)};  ///< for all hosts to be ready
  std::chrono::milliseconds grace{std::chrono::seconds(10)};  ///< between SIGTERM and SIGKILL
  /// After so long without a word from a host it counts as lost, and so does the launcher there.
  std::chrono::milliseconds silence{std::chrono::seconds(60)};
  /// A lost rank ends no other one, as in a job that has shown itself to be elastic.
  bool elastic = false;
  int restarts = 0;  ///< so often a lost rank of an elastic job is started again
  std::function<void(const std::string&)> note;  ///< gets notes that the user may want to know
};

/// A rank that did not end with exit status 0.
struct RankFailure {
  int rank = 0;
  std::string host;
  int pid = 0;
  ProcessExit exit;
  bool misses_module = false;  ///< on another host, whose Python has said so
};

struct HostsResult {
  bool interrupted = false;    ///< ended by the user's request
  bool killed = false;         ///< at the second request
  bool elastic = false;        ///< no failure has ended another rank
  int lost = 0, restarts = 0;  ///< ranks of such a job that were lost, and starts in their places
  std::string left = {};       ///< the files that the job leaves behind, and where, in its own
                               ///< words
  /// The first failure; all other ranks were ended because of it. For an elastic job, if no rank
  /// ended well: the first failure of a rank that was not killed, else the last failure.
  std::optional<RankFailure> failure;
};

/// Returns when the last rank has ended; none is left behind, whatever happens, also on other
/// hosts. Ranks' output goes to standard output and standard error. The first request to stop is
/// handed on to all ranks as the signal that it was, a second one kills them. When a rank fails,
/// the others get SIGTERM, and SIGKILL after `grace`. In an elastic job (docs/elastic.md) the
/// others go on, even when a host is lost: their ends count.
///
/// Errors, after which nothing runs any more: those of ssh (Unauthorized, Timeout, System), a
/// program or folder that a host does not have (InvalidArgument), another version there
/// (ProtocolMismatch), a meeting point that cannot be reached (Timeout, System), a host that is
/// lost (PeerLost).
HostsResult run_on_hosts(const HostsPlan& plan, SignalWatch& signals);

}  // namespace bimetal::launch
