#pragma once
// A server process: it listens for workers, keeps its shard, and, as server 0, coordinates the job.
// One thread does all of that; the calls below hand things over to it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/encryption.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/parallel/server/coordinator.h"

namespace bimetal::parallel::server {

class ShardStore;
struct ServerNode;

struct ServerOptions {
  int server = 0;
  int servers = 1;
  net::Endpoint listen;  ///< port 0: any
  net::Token token;      ///< none: loopback only
  net::Encryption encryption = net::Encryption::off;
  std::string job_id = "job";
  std::string host;                ///< for messages
  std::vector<std::string> facts;  ///< what every client must have alike; see Join
  /// The shard and the optimizer's state, for server 0's checkpoints. Called on the server's
  /// thread.
  std::function<Body()> state;
  std::chrono::milliseconds timeout{60000};  ///< without a sign of life from server 0
};

/// Server `server`'s share of the job's checkpoint.
struct ServerState {
  int server = 0;
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

  /// The states of all servers, by number, after every update so far. During a pause.
  /// Error(Timeout) names the servers that did not answer.
  std::vector<ServerState> snapshot(Deadline deadline);
  void evaluate(std::int64_t chunks);
  void resume();
  void request_pause();
  std::vector<WorkerFigures> figures();
  std::int64_t samples_repeated();

  /// Tells all workers and servers that the job is done, and waits until they have been told.
  void finish(Deadline deadline);

  // ---- the other servers
  // -------------------------------------------------------------------------

  /// Serves under server 0's orders until it says that the job is done. Error(PeerLost) if server 0
  /// is gone, Error(Aborted) when `stop` says so.
  void serve(const net::Endpoint& coordinator, const std::function<bool()>& stop,
             Deadline to_connect);

  /// Bytes put on the wire so far.
  std::uint64_t bytes_sent() const noexcept;

 private:
  std::unique_ptr<ServerNode> node_;
};

}  // namespace bimetal::parallel::server
