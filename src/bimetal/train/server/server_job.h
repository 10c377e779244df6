#pragma once
// A training run by way of parameter servers, as a server and as a worker see it:
// docs/parameter_server.md.

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bimetal/net/encryption.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// Processes that keep parameters, copies included.
int server_processes(const job::ServersConfig& servers);

/// How the processes of the job reach each other.
struct ServerNetwork {
  net::Token token;
  net::Encryption encryption = net::Encryption::off;
  std::string job_id = "job";
};

struct ServerRun {
  int server = 0;
  bool joined = false;  ///< on another machine than server 0, which tells of the data on its own
  std::string listen_host = "127.0.0.1";
  ServerNetwork network;
  TrainerOptions trainer;  ///< all but worker and place among the local ranks
  /// Where this server listens: called once, before anything waits for it.
  std::function<void(const net::Endpoint&)> publish;
  /// Where another server listens; nothing where it has died.
  std::function<std::optional<net::Endpoint>(int server)> find;
  /// Whether it has died.
  std::function<bool(int server)> lost;
  /// Where the process that leads the job answers what its parameters predict: called once training
  /// goes on, and again by whoever takes over. Empty: no predictions are served.
  std::function<void(const net::Endpoint&)> publish_predictions = {};
  /// Where the process that leads the job sends its data set to those who have none; nothing: it
  /// has none either, and ends. Called before anything else, and again by whoever takes over.
  std::function<void(const std::optional<net::Endpoint>&)> publish_data = {};
  /// What it has published, waited for: see DataSender.
  std::function<std::optional<net::Endpoint>()> find_data = {};
  /// Told by the process that leads the job that nothing is left to do, before workers are told.
  std::function<void()> over = {};
  /// Told by it when all have been told: who does not end now has not heard it.
  std::function<void()> finished = {};
  /// Is told of a server that has died, so that nobody looks for it any more.
  std::function<void(int server)> withdraw;
};

/// Server 0, or its copy if it dies, coordinates: it returns the report, saves the checkpoints and
/// tells `observer`; the others return an empty one, and tell of their data alone. Returns when the
/// job is done or stop_requested says so. Errors: those of run_training; Unsupported for a model
/// with buffers (running means and the like).
progress::Report run_parameter_server(const job::JobConfig& job, const ServerRun& run,
                                      progress::Observer& observer);

struct WorkerRun {
  std::vector<net::Endpoint> servers;
  std::set<int> gone;  ///< of these: their copies keep what they kept
  /// Whether nothing is left to do; asked until they have been joined.
  std::function<bool()> over = {};
  /// Whether one of them has died; asked until they have been joined.
  std::function<bool(int server)> lost;
  /// Where the data set is sent from: see DataSender.
  std::function<std::optional<net::Endpoint>()> find_data = {};
  ServerNetwork network;
  TrainerOptions trainer;  ///< all but resume
  int number = -1;         ///< the number that it would like
};

/// Works until the job is done (true), or until stop_requested says so (false): then the lease at
/// hand is finished first. `observer` is told of its data, and when it is ready to train. Errors:
/// those of find_job_data and of the servers, PeerLost naming a lost one.
bool run_worker(const job::JobConfig& job, const WorkerRun& run, progress::Observer& observer);

}  // namespace bimetal::train
