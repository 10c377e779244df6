#include "bimetal/train/server/server_figures.h"

#include <algorithm>
#include <utility>

namespace bimetal::train {
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
