#include "bimetal/train/served_journal.h"

#include <algorithm>

namespace bimetal::train {
namespace {

using parallel::server::WorkerFigures;

constexpr double kServedRecentSeconds = 5;

double alone(const WorkerFigures& worker) {
  return worker.compute_seconds > 0 ? static_cast<double>(worker.samples) / worker.compute_seconds
                                    : 0;
}

double sum_alone(const std::vector<WorkerFigures>& workers, bool with_gone) {
  double sum = 0;
  for (const auto& worker : workers) sum += worker.here || with_gone ? alone(worker) : 0;
  return sum;
}

ServedWorkerReport served(const WorkerFigures& worker) {
  ServedWorkerReport report{.rank = worker.number,
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

WorkerTotals totals_of(const WorkerFigures& worker) {
  return {.samples = worker.samples,
          .compute_s = worker.compute_seconds,
          .communicate_s = worker.communicate_seconds,
          .wait_s = worker.wait_seconds,
          .bytes_sent = worker.bytes_sent,
          .staleness = Staleness{worker.updates, static_cast<std::int64_t>(worker.staleness_sum),
                                 worker.staleness_max}};
}

}  // namespace

std::vector<WorkerPlace> places_of(const std::vector<WorkerFigures>& workers) {
  std::vector<WorkerPlace> places;
  for (const auto& worker : workers) {
    places.resize(static_cast<std::size_t>(worker.number) + 1);
    places.back() = {worker.host, worker.device};
  }
  return places;
}

void ServedJournal::pass_time() {
  if (running_) elapsed_ += since_last_.seconds();
  since_last_ = Stopwatch();
}

void ServedJournal::stop_clock() {
  pass_time();
  running_ = false;
}

double ServedJournal::recent_rate() const {
  double samples = 0;
  for (std::size_t i = 1; i < recent_.size(); ++i) {
    samples += static_cast<double>(recent_[i].second);
  }
  const double seconds =
      recent_.size() > 1 ? recent_.back().first - recent_.front().first : elapsed_;
  if (recent_.size() <= 1 && !recent_.empty()) {
    samples = static_cast<double>(recent_.front().second);
  }
  return seconds > 0 ? samples / seconds : 0;
}

Progress ServedJournal::add(const parallel::server::StepEvent& event) {
  pass_time();
  recent_.emplace_back(elapsed_, event.step.total);
  while (recent_.size() > 2 && elapsed_ - recent_[1].first > kServedRecentSeconds)
    recent_.pop_front();
  if (event.step.epoch != epoch_) {
    epoch_ = event.step.epoch;
    epoch_loss_ = 0;
    epoch_samples_ = 0;
  }
  epoch_loss_ += event.loss_sum;
  epoch_samples_ += event.samples;
  Progress progress;
  progress.epoch = event.step.epoch + 1;
  progress.epochs = job_.train.epochs;
  progress.step = event.step.number;
  progress.steps = planned_steps_;
  progress.loss = event.loss_sum / static_cast<double>(std::max<std::int64_t>(event.samples, 1));
  progress.samples_per_s = recent_rate();
  const double sum = sum_alone(event.workers, false);
  progress.efficiency = sum > 0 ? progress.samples_per_s / sum : 0;
  progress.seconds_left =
      static_cast<double>((planned_steps_ - event.step.number) * job_.train.global_batch) /
      std::max(progress.samples_per_s, 1e-9);
  progress.elapsed_s = elapsed_;
  // By number, as ranks are elsewhere; one that is gone keeps its place.
  for (const auto& worker : event.workers) {
    const auto number = static_cast<std::size_t>(worker.number);
    progress.shares.resize(number + 1);
    progress.rank_samples_per_s.resize(number + 1);
    progress.workers.resize(number + 1);
    const auto share = event.shares.find(worker.number);
    if (share != event.shares.end()) progress.shares[number] = share->second;
    if (worker.here) progress.rank_samples_per_s[number] = alone(worker);
    progress.workers[number] = totals_of(worker);
  }
  history_.add({.step = progress.step,
                .elapsed_s = elapsed_,
                .loss = progress.loss,
                .samples_per_s = progress.samples_per_s,
                .efficiency = progress.efficiency,
                .shares = progress.shares});
  return progress;
}

Report ServedJournal::report(const std::vector<WorkerFigures>& workers,
                             std::int64_t samples_repeated, std::int64_t steps,
                             std::uint64_t updates, std::uint64_t server_bytes) const {
  Report report;
  report.world_size = static_cast<int>(workers.size());
  report.steps = steps;
  report.elapsed_s = elapsed_;
  report.train_loss = epoch_loss_ / static_cast<double>(std::max<std::int64_t>(epoch_samples_, 1));
  report.evaluations = evaluations_;
  report.test_accuracy = last_accuracy(evaluations_);
  report.history = history_.points();
  report.bytes_sent = static_cast<std::int64_t>(server_bytes);
  ServerReport server{.servers = static_cast<int>(job_.parallel.servers.size()),
                      .consistency = job_.parallel.consistency,
                      .updates = static_cast<std::int64_t>(updates),
                      .samples_repeated = samples_repeated};
  double samples = 0, staleness = 0, leases = 0;
  for (const auto& worker : workers) samples += static_cast<double>(worker.samples);
  for (const auto& worker : workers) {
    report.bytes_sent += static_cast<std::int64_t>(worker.bytes_sent);
    report.workers.push_back(
        {.rank = worker.number,
         .host = worker.host,
         .device = worker.device,
         .share = samples > 0 ? static_cast<double>(worker.samples) / samples : 0,
         .samples = worker.samples,
         .compute_s = worker.compute_seconds,
         .communicate_s = worker.communicate_seconds,
         .wait_s = worker.wait_seconds,
         .samples_per_s_alone = alone(worker)});
    server.workers.push_back(served(worker));
    staleness += worker.staleness_sum;
    leases += static_cast<double>(worker.updates);
    server.staleness_max = std::max(server.staleness_max, worker.staleness_max);
  }
  if (leases > 0) server.staleness_mean = staleness / leases;
  if (elapsed_ > 0) report.samples_per_s = samples / elapsed_;
  const double sum = sum_alone(workers, true);
  if (sum > 0) report.efficiency = report.samples_per_s / sum;
  report.server = std::move(server);
  return report;
}

}  // namespace bimetal::train
