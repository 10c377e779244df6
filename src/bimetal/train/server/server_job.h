#pragma once
// A training run by way of parameter servers, as a server and as a worker see it:
// docs/parameter_server.md.

#include <string>

#include "bimetal/job/job_keys.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

struct ServerRun {
  int server = 0;
  bool joined = false;  ///< on another machine than server 0, which tells of the data on its own
  std::string listen_host = "127.0.0.1";
  parallel::server::Credentials credentials;               ///< the job's
  parallel::server::ServerDirectory* directory = nullptr;  ///< outlives the run
  TrainerOptions trainer;  ///< all but worker and place among the local ranks
};

/// Server 0, or its copy if it dies, coordinates: it returns the report, saves the checkpoints and
/// tells `observer`; the others return an empty one, and tell of their data alone. Returns when the
/// job is done or stop_requested says so. Errors: those of run_training; Unsupported for a model
/// with buffers (running means and the like).
progress::Report run_parameter_server(const job::JobConfig& job, const ServerRun& run,
                                      progress::Observer& observer);

struct WorkerRun {
  parallel::server::Credentials credentials;               ///< the job's
  parallel::server::ServerDirectory* directory = nullptr;  ///< outlives the run
  TrainerOptions trainer;                                  ///< all but resume
  int number = -1;                                         ///< the number that it would like
};

/// Works until the job is done (true; also where it was done before this
/// worker had come), or until stop_requested says so (false): then the lease at
/// hand is finished first. `observer` is told of its data, and when it is ready to train. Errors:
/// those of find_job_data and of the servers, PeerLost naming a lost one.
bool run_worker(const job::JobConfig& job, const WorkerRun& run, progress::Observer& observer);

}  // namespace bimetal::train
