#include "bimetal/parallel/server/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace bimetal::parallel::server {
namespace {

// In the id of a lease of test chunks, beside the worker's number.
constexpr std::uint64_t kEvaluationBit = std::uint64_t{1} << 31;
// So that fast workers get more of an evaluation than slow ones.
constexpr std::int64_t kPartsPerWorker = 3;

/// The speed that a worker claims in its message, if that makes sense.
WorkerSpeed speed_of(const Join& join) {
  const double sample_seconds = 1 / join.samples_per_s;
  const bool known = join.samples_per_s > 0 && std::isfinite(join.samples_per_s) &&
                     std::isfinite(sample_seconds) && join.step_seconds >= 0 &&
                     std::isfinite(join.step_seconds);
  return known ? WorkerSpeed({join.step_seconds, sample_seconds}) : WorkerSpeed();
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options, CoordinatorPort& port, Tell tell,
                         TimePoint now)
    : options_(options),
      port_(port),
      tell_(std::move(tell)),
      ledger_(options.ledger),
      version_(options.version),
      age_(options.version),
      evaluations_(options.ledger.first_lease),
      last_with_worker_(now) {
  for (const auto& figures : options.workers) {
    Worker& worker = workers_[figures.number];
    worker.figures = figures;
    worker.figures.lost |= std::exchange(worker.figures.here, false);
    not_finite_ += static_cast<int>(figures.dropped);
  }
}

std::string Coordinator::name_of(int worker) const {
  const auto& figures = workers_.at(worker).figures;
  return fmt::format("worker {} ({} on {})", worker, figures.device, figures.host);
}

int Coordinator::admit(const Join& join) {
  const auto known = workers_.find(join.number);
  // One that the coordinator before this one knew keeps its number.
  const bool back = known != workers_.end() && !known->second.figures.here &&
                    known->second.figures.lost && known->second.figures.host == join.host;
  const bool wish = join.number >= 0 && join.number < (1 << 20) && known == workers_.end();
  while (workers_.contains(next_number_)) ++next_number_;
  const int number = wish || back ? join.number : next_number_;
  Worker& worker = workers_[number];
  worker.figures.here = true;
  worker.figures.lost = false;
  worker.figures.number = number;
  worker.figures.host = join.host;
  worker.figures.device = join.device;
  ledger_.add_worker(number, speed_of(join));
  return number;
}

void Coordinator::ready(int worker, TimePoint now) {
  workers_.at(worker).joined = true;
  workers_.at(worker).heard = now;
  tell_(JoinedEvent{worker, name_of(worker)});
  hand_out(now);
}

void Coordinator::done(int worker, std::uint64_t lease, const Done& done, TimePoint now) {
  Worker& from = workers_.at(worker);
  if (worker_of(lease) != worker) {
    throw Error(ErrorCode::CorruptData, "a worker reports the lease of another one", worker);
  }
  from.figures.compute_seconds += done.compute_seconds;
  from.figures.communicate_seconds += done.communicate_seconds;
  from.figures.wait_seconds += done.wait_seconds;
  from.figures.bytes_sent = done.bytes_sent;
  const auto pending = pending_.find(lease);
  if (pending == pending_.end()) {
    // Revoked meanwhile, or granted by the coordinator before this one: then the worker has work.
    const bool older =
        static_cast<std::uint32_t>(lease & ~kEvaluationBit) < options_.ledger.first_lease;
    if (older && (lease & kEvaluationBit) == 0) port_.send_drop(lease);
    from.taken_back.erase(lease);
    ledger_.finished_late(lease, done.compute_seconds, now);
    wake(from);
    hand_out(now);
    return;
  }
  pending->second.done = done;
  try_settle(lease, now);
}

void Coordinator::staged(int server, std::uint64_t lease, bool finite, TimePoint now) {
  const auto pending = pending_.find(lease);
  if (pending == pending_.end()) return;
  pending->second.staged.insert(server);
  pending->second.finite &= finite;
  try_settle(lease, now);
}

bool Coordinator::try_settle(std::uint64_t lease, TimePoint now) {
  const Pending& pending = pending_.at(lease);
  const bool whole =
      pending.lease.work != Work::train || std::ranges::includes(pending.staged, options_.servers);
  if (!pending.done || !whole) return false;
  const auto node = pending_.extract(lease);
  Worker& worker = workers_.at(worker_of(lease));
  std::erase(worker.leases, lease);
  wake(worker);
  if (node.mapped().lease.work == Work::train) {
    settle(lease, node.mapped(), now);
  } else {
    settle_evaluation(node.mapped());
  }
  if (worker.leaving && worker.leases.empty()) ledger_.remove_worker(worker.figures.number);
  advance();
  hand_out(now);
  return true;
}

void Coordinator::settle(std::uint64_t lease, const Pending& pending, TimePoint now) {
  const int worker = worker_of(lease);
  const auto& samples = ledger_.out().at(lease);
  if (pending.finite) {
    results_[lease] = {*pending.done, worker, samples.count};
    auto& [loss, weight] = losses_[samples.step];
    loss += pending.done->loss_sum;
    weight += samples.weight;
  } else {
    port_.send_drop(lease);
    ++workers_.at(worker).figures.dropped;
    const auto text = fmt::format(
        "the gradients of {} in step {} are not finite (NaN or infinity) and were dropped",
        name_of(worker), samples.step);
    notice(text);
    if (++not_finite_ >= options_.max_not_finite && !failed_) {
      failed_ = true;
      tell_(FailedEvent{Error(
          ErrorCode::NotFinite,
          fmt::format("{}; that was number {} (servers.max_not_finite). A lower learning rate or a "
                      "look at that worker's data may help. The last checkpoint is kept",
                      text, not_finite_),
          worker)});
    }
  }
  ledger_.complete(lease, pending.finite, pending.done->compute_seconds, now);
}

void Coordinator::settle_evaluation(const Pending& pending) {
  if (!evaluation_) return;
  auto& sums = evaluation_->sums;
  const auto& metrics = pending.done->metrics;
  sums.metrics.resize(std::max(sums.metrics.size(), metrics.size()));
  for (std::size_t i = 0; i < metrics.size(); ++i) sums.metrics[i] += metrics[i];
  sums.loss_sum += pending.done->loss_sum;
  sums.weight += pending.done->weight;
  evaluation_->left -= pending.lease.count;
  if (evaluation_->left > 0) return;
  const auto total = std::move(sums);
  evaluation_.reset();
  tell_(total);
}

/// Turns complete gradients into updates, and tells of steps that have ended.
void Coordinator::advance() {
  for (const Update& update : ledger_.take_updates()) use(update);
  for (const EndedStep& step : ledger_.take_ended_steps()) {
    const auto loss = losses_.extract(step.number);
    StepEvent event{
        .step = step, .shares = ledger_.shares(options_.ledger.global_batch), .workers = figures()};
    if (!loss.empty()) std::tie(event.loss_sum, event.weight) = loss.mapped();
    port_.send_record(event);
    tell_(std::move(event));
  }
  if (!ledger_.paused() || told_pause_) return;
  told_pause_ = true;
  tell_(PauseEvent{ledger_.steps_done(), ledger_.epoch(), ledger_.offset(), version_,
                   ledger_.at_end()});
}

void Coordinator::use(const Update& update) {
  double staleness_sum = 0;
  for (const auto lease : update.leases) {
    const auto result = results_.extract(lease);
    auto& figures = workers_.at(result.mapped().worker).figures;
    const auto used = std::min(result.mapped().done.version, version_);
    const auto staleness = static_cast<std::int64_t>(version_ - used);
    figures.staleness_sum += static_cast<double>(staleness);
    figures.staleness_max = std::max(figures.staleness_max, staleness);
    staleness_sum += static_cast<double>(staleness);
    age_.observe(result.mapped().worker, used);
    ++figures.updates;
    figures.samples += result.mapped().samples;
  }
  Apply apply{1, update.part, update.leases, update.after};
  if (options_.learning_rate_factor) {
    // In async the step that is not done yet.
    const bool async = options_.ledger.consistency == Consistency::async;
    apply.learning_rate_scale *=
        options_.learning_rate_factor(update.after.steps_done + (async ? 1 : 0));
  }
  if (options_.staleness_aware && !update.leases.empty()) {
    const double mean = staleness_sum / static_cast<double>(update.leases.size());
    apply.learning_rate_scale /= std::max(mean, 1.0);
  }
  age_.add_update(update.part);
  port_.send_apply(++version_, apply);
}

void Coordinator::hand_out(TimePoint now) {
  if (failed_) return;
  std::size_t most = 1;
  for (const auto& [number, worker] : workers_) {
    most = std::max(most, ledger_.leases_at_once(number));
  }
  // Nobody gets a second one while others have none.
  for (std::size_t held = 0; held < most; ++held) {
    for (auto& [number, worker] : workers_) {
      if (worker.leases.size() == held) hand_to(worker, now);
    }
  }
}

void Coordinator::hand_to(Worker& worker, TimePoint now) {
  const int number = worker.figures.number;
  if (!worker.joined || !worker.figures.here || worker.silent) return;
  if (!worker.taken_back.empty()) return;
  const bool full = worker.leases.size() >= ledger_.leases_at_once(number);
  if (!worker.leases.empty() && (evaluation_ || full)) return;
  const auto lease = next_for(number, now);
  if (!lease) return;
  worker.leases.push_back(lease->id);
  pending_[lease->id].lease = *lease;
  port_.send_lease(number, *lease);
}

std::optional<Lease> Coordinator::next_for(int worker, TimePoint now) {
  if (evaluation_) return next_chunks(worker);
  const auto samples = ledger_.grant(worker, now);
  if (!samples) return std::nullopt;
  return Lease{.id = samples->id,
               .work = Work::train,
               .epoch = samples->epoch,
               .offset = samples->offset,
               .count = samples->count,
               .denominator = samples->denominator,
               .version = version_,
               .steps_ahead = steps_ahead(*samples)};
}

/// How many steps from now its gradients are expected to be applied.
double Coordinator::steps_ahead(const SampleLease& lease) const {
  if (!options_.weight_prediction) return 0;
  if (options_.ledger.consistency == Consistency::async) return age_.expected(lease.worker);
  return std::min(static_cast<double>(lease.step - 1 - ledger_.steps_done()), kFurthestAhead);
}

std::optional<Lease> Coordinator::next_chunks(int worker) {
  auto& free = evaluation_->free;
  if (free.empty()) return std::nullopt;
  const auto share = ledger_.shares(evaluation_->total)[worker] / kPartsPerWorker;
  auto& [offset, left] = free.back();
  const auto count = std::clamp(share, std::int64_t{1}, left);
  const Lease lease{
      .id = (static_cast<std::uint64_t>(worker) << 32) | kEvaluationBit | ++evaluations_,
      .work = Work::evaluate,
      .offset = offset,
      .count = count,
      .version = version_};
  offset += count;
  left -= count;
  if (left == 0) free.pop_back();
  return lease;
}

void Coordinator::evaluate(std::int64_t chunks, TimePoint now) {
  evaluation_ = Evaluation{.free = {{0, chunks}}, .total = chunks, .sums = {}, .left = chunks};
  hand_out(now);
}

void Coordinator::resume(TimePoint now) {
  told_pause_ = false;
  ledger_.resume();
  advance();
  hand_out(now);
}

void Coordinator::request_pause() {
  stopping_ = true;
  ledger_.request_pause();
  advance();
}

std::vector<WorkerFigures> Coordinator::figures() const {
  std::vector<WorkerFigures> all;
  for (const auto& [number, worker] : workers_) all.push_back(worker.figures);
  return all;
}

}  // namespace bimetal::parallel::server
