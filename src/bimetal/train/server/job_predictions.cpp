#include "bimetal/train/server/job_predictions.h"

#include <torch/csrc/api/include/torch/types.h>

#include <utility>

#include "bimetal/base/release.h"
#include "bimetal/device/device.h"

namespace bimetal::train {
namespace {

namespace ps = parallel::server;

/// Longest wait of a prediction for the parameters of another server.
constexpr std::chrono::seconds kToFetch{5};

serving::ServerOptions prediction_server(const ServerRun& run) {
  serving::ServerOptions options;
  options.listen = {run.listen_host, 0};
  options.token = run.credentials.token;
  options.encryption = run.credentials.encryption;
  return options;
}

device::Place own_place(const checkpoint::ModelDescription& description) {
  return {torch::kCPU, device::dtype_named(description.dtype)};
}

}  // namespace

JobPredictions::JobPredictions(const JobParts& parts,
                               const checkpoint::ModelDescription& description)
    : parts_(parts),
      weights_(
          description, parts.plan, [this] { return reader_options(); },
          [this] { return parts_.server.version(); }),
      model_(description, own_place(description), 1.0, weights_),
      server_(prediction_server(parts.run), model_) {}

/// On the thread that computes.
ps::ClientOptions JobPredictions::reader_options() const {
  const auto& run = parts_.run;
  ps::ClientOptions options;
  for (int server = 0; server < server_processes(parts_.job.servers); ++server) {
    const auto at = server == run.server ? parts_.server.endpoint() : run.directory->find(server);
    if (!at) options.gone.insert(server);
    options.servers.push_back(at.value_or(net::Endpoint{}));
  }
  options.shards = static_cast<int>(parts_.job.servers.weights.size());
  options.token = run.credentials.token;
  options.encryption = run.credentials.encryption;
  options.job_id = run.credentials.job_id;
  options.join.role = ps::Role::reader;
  options.join.host = run.trainer.host_name;
  options.join.device = "cpu";
  options.join.release = std::string(release());
  options.join.facts = parts_.facts;
  options.timeout = kToFetch;
  return options;
}

}  // namespace bimetal::train
