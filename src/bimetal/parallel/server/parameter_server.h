#pragma once
// A server process. It listens for workers, keeps its shard, and coordinates the job if it is
// server 0. One thread does all of that; the calls below pass work to it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/parallel/server/coordinator.h"

namespace bimetal::parallel::server {

class ShardStore;
struct ServerNode;

struct ServerOptions {
  int server = 0;
  int servers = 1;       ///< copies included
  int shards = 1;        ///< server k keeps shard k mod shards; `servers` is that or twice as many
  net::Endpoint listen;  ///< port 0: any
  net::Token token;      ///< none: loopback only
  net::Encryption encryption = net::Encryption::off;
  std::string job_id = "job";
  std::string host;                ///< for messages
  std::vector<std::string> facts;  ///< what every client must have alike; see Join
  Position start;                  ///< what the parameters have learnt from at the start
  /// The shard and the optimizer's state, for server 0's checkpoints. Called on the server's
  /// thread.
  std::function<Body()> state;
  /// Without a sign of life from another server, as patience_for() has it.
  std::chrono::milliseconds timeout{60000};
  std::optional<std::chrono::milliseconds> peer_timeout = {};
  /// Whether a server has died, as others see it: asked about those that have not been met yet, on
  /// the thread of follow() or next_event(), ten times per second. Empty: nobody knows.
  std::function<bool(int server)> lost = {};
  /// Lines of this server's log, for the server that leads. None: nothing.
  progress::RankLog* log = nullptr;
};

/// A shard's share of the job's checkpoint.
struct ServerState {
  int shard = 0;
  Body bytes;
};

/// Thread-safe. Errors on the server's thread end the job and are thrown by next_event() or wait().
class ParameterServer {
 public:
  /// Listens. Errors of net::Listener. `store` is the server's own until it is destroyed.
  ParameterServer(const ServerOptions& options, ShardStore& store);
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  net::Endpoint endpoint() const;

  // ---- server 0
  // ----------------------------------------------------------------------------------

  /// Begins to coordinate. Other servers and workers are admitted from now on.
  void coordinate(const CoordinatorOptions& options);

  /// The next thing that happened, or nothing by the deadline. A failed job's error is thrown.
  std::optional<Event> next_event(Deadline deadline);

  /// Whether all servers that live have joined this one, which leads.
  bool complete();

  /// The states of all shards, by number, after every update so far. During a pause.
  /// If a server dies that was asked, its copy is asked; PeerLost if there is none. Error(Timeout)
  /// names a shard whose keeper did not answer.
  std::vector<ServerState> snapshot(Deadline deadline);
  void evaluate(std::int64_t chunks);
  void resume();
  void request_pause();
  std::vector<WorkerFigures> figures();
  std::int64_t samples_repeated();

  /// Tells the other servers that the job has failed, so that nobody goes on with it.
  void abort(const Error& why);

  /// Tells all workers and servers that the job is done, and waits until they have been told.
  void finish(Deadline deadline);

  // ---- the other servers
  // -------------------------------------------------------------------------

  /// Follows server 0's orders until it says that the job is done. If server 0 dies and there
  /// are copies, its own (at `stand_in`) leads from then on: true, on that server, means that it is
  /// to call lead() now; the others follow it. An address is empty where that server has died
  /// already. `tell` gets server 0's StepEvents on the stand-in. Error(PeerLost) if nobody leads
  /// any more; Timeout on a server that the others have given up meanwhile.
  bool follow(const std::optional<net::Endpoint>& coordinator,
              const std::optional<net::Endpoint>& stand_in,
              const std::function<void(const Event&)>& tell, Deadline to_connect);

  /// Goes on with the job where server 0 left it; afterwards this is the coordinator. It fills in
  /// the servers, the version and the ledger's start in `options`. Error(PeerLost) if some shard
  /// has no server left that keeps it.
  void lead(const CoordinatorOptions& options);

  /// The samples up to which the parameters here have learnt, and their version.
  std::pair<Position, std::uint64_t> position();

  /// Updates that the parameters here have seen.
  std::uint64_t version();

  /// Bytes put on the wire so far.
  std::uint64_t bytes_sent() const noexcept;

 private:
  void look_for_the_lost();
  void require_that_nobody_leads(const net::Endpoint& server0);

  std::unique_ptr<ServerNode> node_;
  Deadline next_look_ = Deadline::at({});
};

}  // namespace bimetal::parallel::server
