#pragma once
// Predictions with the newest parameters of a running job, served from the process of the server
// that leads it, beside the training.

#include <string>
#include <vector>

#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/predict/checkpoint_weights.h"
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

}  // namespace bimetal::train
