#include "bimetal/train/server/job_predictions.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
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

namespace {

using Worker = parallel::server::WorkerFigures;

progress::WorkerState state_of(const Worker& worker) {
  const progress::Staleness staleness{
      worker.updates, static_cast<std::int64_t>(worker.staleness_sum), worker.staleness_max};
  return {.totals = {.samples = worker.samples,
                     .compute_s = worker.compute_seconds,
                     .communicate_s = worker.communicate_seconds,
                     .wait_s = worker.wait_seconds,
                     .bytes_sent = worker.bytes_sent,
                     .staleness = staleness},
          .here = worker.here};
}

progress::ServerWorkerReport report_of(const Worker& worker) {
  progress::ServerWorkerReport report{.rank = worker.number,
                                      .updates = worker.updates,
                                      .staleness_max = worker.staleness_max,
                                      .dropped = worker.dropped,
                                      .state = worker.here   ? "here"
                                               : worker.lost ? "lost"
                                                             : "left"};
  if (worker.updates > 0) {
    report.staleness_mean = worker.staleness_sum / static_cast<double>(worker.updates);
  }
  return report;
}

}  // namespace

std::vector<progress::WorkerPlace> places_of(const Workers& workers) {
  std::vector<progress::WorkerPlace> places;
  for (const auto& worker : workers) {
    places.resize(static_cast<std::size_t>(worker.number) + 1);
    places.back() = {worker.host, worker.device};
  }
  return places;
}

progress::Progress note_step(progress::Journal& journal, const parallel::server::StepEvent& event) {
  progress::StepDone done{.number = event.step.number,
                          .epoch = event.step.epoch,
                          .weight = event.weight,
                          .loss_sum = event.loss_sum};
  std::vector<progress::WorkerState> states;
  for (const auto& worker : event.workers) {
    states.resize(static_cast<std::size_t>(worker.number) + 1, {.here = false});
    states.back() = state_of(worker);
  }
  done.shares.resize(states.size());
  for (const auto& [number, share] : event.shares) {
    const auto place = static_cast<std::size_t>(number);
    if (place < done.shares.size()) done.shares[place] = share;
  }
  return journal.add(done, states);
}

progress::Report report_of_servers(const progress::Journal& journal,
                                   const job::ServersConfig& config, std::int64_t steps,
                                   const Workers& workers, const ServersAtEnd& servers) {
  progress::ServerReport by_servers{.servers = static_cast<int>(config.weights.size()),
                                    .consistency = config.consistency,
                                    .updates = servers.updates,
                                    .samples_repeated = servers.samples_repeated};
  std::vector<progress::WorkerAtEnd> at_end;
  double staleness = 0, leases = 0;
  for (const auto& worker : workers) {
    at_end.push_back({worker.number, {worker.host, worker.device}, state_of(worker)});
    by_servers.workers.push_back(report_of(worker));
    staleness += worker.staleness_sum;
    leases += static_cast<double>(worker.updates);
    by_servers.staleness_max = std::max(by_servers.staleness_max, worker.staleness_max);
  }
  if (leases > 0) by_servers.staleness_mean = staleness / leases;
  auto report = journal.report(steps, at_end, journal.elapsed_seconds());
  report.bytes_sent += static_cast<std::int64_t>(servers.bytes_sent);
  report.server = std::move(by_servers);
  return report;
}

}  // namespace bimetal::train
