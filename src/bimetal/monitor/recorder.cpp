#include "bimetal/monitor/recorder.h"

#include <algorithm>
#include <cmath>

#include "bimetal/monitor/status.h"
#include "bimetal/net/silence.h"

namespace bimetal::monitor {
namespace {

constexpr std::size_t kMostNotices = 5;
// Rates are taken over at least the longer span (once there has been as much), from marks that are
// no closer to each other than the shorter one: a few dozen, however fast the steps are.
constexpr double kRecentSeconds = 3.0;
constexpr double kMarkEvery = 0.1;

std::optional<double> if_finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

void add_totals(const progress::WorkerTotals& now, WorkerStatus& worker) {
  worker.samples = now.samples;
  worker.compute_s = now.compute_s;
  worker.communicate_s = if_finite(now.communicate_s);
  worker.wait_s = if_finite(now.wait_s);
  worker.bytes_sent = now.bytes_sent;
  if (now.memory_bytes > 0) worker.memory_bytes = now.memory_bytes;
  if (now.staleness) worker.staleness_max = now.staleness->max;
}

void add_rates(const progress::WorkerTotals& before, const progress::WorkerTotals& now,
               double seconds, WorkerStatus& worker) {
  if (!(seconds > 0)) return;
  worker.samples_per_s = static_cast<double>(now.samples - before.samples) / seconds;
  worker.wait_part = if_finite(std::min((now.wait_s - before.wait_s) / seconds, 1.0));
  worker.bytes_per_s = static_cast<double>(now.bytes_sent - before.bytes_sent) / seconds;
  if (!now.staleness) return;
  const auto past = before.staleness.value_or(progress::Staleness{});
  const auto updates = now.staleness->updates - past.updates;
  if (updates > 0) {
    worker.staleness =
        static_cast<double>(now.staleness->sum - past.sum) / static_cast<double>(updates);
  }
}

}  // namespace

Recorder::Recorder() {
  status_.started_at = unix_time();
  status_.phase = "starting";
}

void Recorder::set_phase(const std::string& what) {
  const std::scoped_lock lock(mutex_);
  status_.phase = what;
}

void Recorder::on_phase(const std::string& what) {
  set_phase(what);
}

void Recorder::on_data(const progress::DataProgress& progress) {
  set_phase(progress.what);
}

void Recorder::on_workers(const std::vector<progress::WorkerPlace>& places) {
  const std::scoped_lock lock(mutex_);
  places_ = places;
}

void Recorder::on_step(const progress::Progress& progress) {
  const std::scoped_lock lock(mutex_);
  progress_ = progress;
  since_step_ = Stopwatch();
  remember(progress);
}

void Recorder::remember(const progress::Progress& progress) {
  // The first step's span began before it: by then nothing was done.
  if (marks_.empty()) {
    marks_.push_back({0, std::vector<progress::WorkerTotals>(progress.workers.size())});
  }
  if (progress.elapsed_s - marks_.back().elapsed_s < kMarkEvery) return;
  marks_.push_back({progress.elapsed_s, progress.workers});
  while (marks_.size() > 1 && progress.elapsed_s - marks_[1].elapsed_s >= kRecentSeconds) {
    marks_.pop_front();
  }
}

void Recorder::on_evaluated(std::int64_t, const progress::Evaluation& evaluation) {
  const std::scoped_lock lock(mutex_);
  const bool tests = evaluation.data == progress::kTestData;
  auto& metrics = tests ? status_.test_metrics : status_.validation_metrics;
  metrics.clear();
  for (const auto& [name, value] : evaluation.metrics) {
    if (const auto finite = if_finite(value)) metrics.push_back({name, *finite});
  }
  (tests ? status_.test_loss : status_.validation_loss) = if_finite(evaluation.loss);
}

void Recorder::on_notice(const std::string& text) {
  const std::scoped_lock lock(mutex_);
  status_.notices.push_back(text);
  if (status_.notices.size() > kMostNotices) status_.notices.erase(status_.notices.begin());
}

void Recorder::on_members(const progress::MembersChange& change) {
  {
    const std::scoped_lock lock(mutex_);
    status_.workers_lost += std::ssize(change.lost);
    status_.workers_left += std::ssize(change.left);
    status_.workers_joined += std::ssize(change.came);
    status_.change_s += change.seconds;
  }
  Observer::on_members(change);
}

Status Recorder::status() const {
  const std::scoped_lock lock(mutex_);
  auto status = status_;
  status.workers.resize(std::max(places_.size(), progress_.shares.size()));
  int peer = 0;  // those who are here have their ranks in the order of their numbers
  for (std::size_t rank = 0; rank < status.workers.size(); ++rank) {
    auto& shown = status.workers[rank] = worker(rank);
    if (shown.gone) continue;
    if (const auto silence = net::silence_of(peer++)) {
      shown.silent_s = std::chrono::duration<double>(*silence).count();
    }
  }
  if (progress_.step == 0) return status;
  status.epoch = progress_.epoch;
  status.epochs = progress_.epochs;
  status.step = progress_.step;
  status.steps = progress_.steps;
  status.elapsed_s = progress_.elapsed_s;
  status.since_step_s = since_step_.seconds();
  status.loss = if_finite(progress_.loss);
  status.samples_per_s = if_finite(progress_.samples_per_s);
  status.learning_rate = progress_.learning_rate;
  status.loss_scale = progress_.loss_scale;
  status.counts = progress_.counts;
  status.efficiency = if_finite(progress_.efficiency);
  status.seconds_left = if_finite(progress_.seconds_left);
  if (progress_.pipeline) {
    status.schedule = progress_.pipeline->schedule;
    status.micro_batches = progress_.pipeline->micro_batches;
  }
  return status;
}

/// Everything known of it. Not every vector has an entry for every rank at every time.
WorkerStatus Recorder::worker(std::size_t rank) const {
  WorkerStatus worker{.rank = static_cast<int>(rank)};
  if (rank < places_.size()) {
    worker.host = places_[rank].host;
    worker.device = places_[rank].device;
    worker.gone = places_[rank].gone;
    if (!places_[rank].stage.empty()) worker.stage = places_[rank].stage;
  }
  if (rank < progress_.shares.size()) worker.share = progress_.shares[rank];
  if (rank < progress_.rank_samples_per_s.size()) {
    worker.samples_per_s_alone = progress_.rank_samples_per_s[rank];
  }
  if (rank >= progress_.workers.size()) return worker;
  const auto& now = progress_.workers[rank];
  add_totals(now, worker);
  const auto& then = marks_.front();
  if (rank < then.workers.size()) {
    add_rates(then.workers[rank], now, progress_.elapsed_s - then.elapsed_s, worker);
  }
  return worker;
}

}  // namespace bimetal::monitor
