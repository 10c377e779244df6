#pragma once
// Predictions with the newest parameters of a running job, served from the process of the server
// that leads it, beside the training.

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/coordinator.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/predict/checkpoint_weights.h"
#include "bimetal/progress/journal.h"
#include "bimetal/serving/server.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::train {

/// The parts of the server process that predictions need; all of them outlive the predictions.
struct JobParts {
  const job::JobConfig& job;
  const ServerRun& run;
  parallel::server::ParameterServer& server;
  const parallel::server::ShardPlan& plan;
  const std::vector<std::string>& facts;  ///< as workers have them
};

/// The computing thread is the serving::Server's, as is the one that moves its bytes: those of the
/// training do nothing for it but to send the parameters, as to one more worker.
class JobPredictions {
 public:
  /// Listens, on any port of run.listen_host. Errors of serving::Server.
  JobPredictions(const JobParts& parts, const checkpoint::ModelDescription& description);

  net::Endpoint endpoint() const { return server_.endpoint(); }

 private:
  parallel::server::ClientOptions reader_options() const;

  const JobParts parts_;
  predict::JobWeights weights_;
  predict::PredictionModel model_;
  serving::Server server_;
};

// Parameter servers' figures on their workers, in the journal's form.

using Workers = std::vector<parallel::server::WorkerFigures>;  ///< in the order of their numbers

/// By number.
std::vector<progress::WorkerPlace> places_of(const Workers& workers);

/// A step that server 0 tells of, into the journal. Workers have the places of their numbers; one
/// that is gone keeps its own.
progress::Progress note_step(progress::Journal& journal, const parallel::server::StepEvent& event);

/// Figures that only servers have.
struct ServersAtEnd {
  std::int64_t updates = 0;  ///< changes of the parameters in this run
  std::int64_t samples_repeated = 0;
  std::uint64_t bytes_sent = 0;
};
progress::Report report_of_servers(const progress::Journal& journal,
                                   const job::ServersConfig& config, std::int64_t steps,
                                   const Workers& workers, const ServersAtEnd& servers);

}  // namespace bimetal::train
