#include "bimetal/parallel/server/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

constexpr double kNewest = 0.5;  // weight of the newest measurement of a worker's rate
// async: samples that nobody took of a step that far behind the newest go to whoever asks.
constexpr std::int64_t kLeftBehind = 2;

double seconds_between(TimePoint begin, TimePoint end) {
  return std::max(std::chrono::duration<double>(end - begin).count(), 1e-6);
}

void check_ledger(const LedgerOptions& options) {
  const bool fits = options.dataset_size >= 1 && options.global_batch >= 1 &&
                    options.global_batch <= balance::kMaxBatch && options.epochs >= 0 &&
                    options.staleness >= 0 && options.steps_done >= 0 && options.epoch >= 0 &&
                    options.offset >= 0 && options.offset <= options.dataset_size;
  if (!fits) {
    throw Error(ErrorCode::InvalidArgument,
                "a ledger needs samples, a global batch, a staleness of at least 0 and a position "
                "within the data");
  }
}

}  // namespace

Consistency consistency_of(std::string_view name) {
  if (name == "sync") return Consistency::sync;
  if (name == "async") return Consistency::async;
  if (name == "bounded") return Consistency::bounded;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("parallel.consistency is '{}'; known: sync, async, bounded", name));
}

Ledger::Ledger(const LedgerOptions& options)
    : options_((check_ledger(options), options)),
      steps_done_(options.steps_done),
      last_opened_(options.steps_done),
      epoch_(options.epoch),
      offset_(options.offset) {
  if (options_.consistency == Consistency::sync) options_.staleness = 0;
  if (offset_ == options_.dataset_size) {
    ++epoch_;
    offset_ = 0;
  }
  resume();
}

void Ledger::add_worker(int worker, double samples_per_s) {
  rates_[worker] = std::max(samples_per_s, 0.0);
}

void Ledger::remove_worker(int worker) {
  rates_.erase(worker);
  for (auto lease = out_.begin(); lease != out_.end();) {
    if (lease->second.worker != worker) {
      ++lease;
      continue;
    }
    give_back(lease->second, lease->second.second_try);
    lease = out_.erase(lease);
  }
}

void Ledger::give_back(const SampleLease& lease, bool second_try) {
  auto& free = step_of(lease).free;
  free.insert(free.begin(), {lease.offset, lease.count, second_try});
  samples_repeated_ += lease.count;
}

Ledger::Step& Ledger::step_of(const SampleLease& lease) {
  return open_[static_cast<std::size_t>(lease.step - open_.front().facts.number)];
}

double Ledger::rate(int worker) const {
  const auto found = rates_.find(worker);
  return found == rates_.end() ? 0 : found->second;
}

std::map<int, std::int64_t> Ledger::shares(std::int64_t total) const {
  double sum = 0;
  int known = 0;
  for (const auto& [worker, rate] : rates_) {
    sum += rate;
    known += rate > 0 ? 1 : 0;
  }
  const double mean = known > 0 ? sum / known : 1;
  std::vector<double> weights;
  for (const auto& [worker, rate] : rates_) weights.push_back(rate > 0 ? rate : mean);
  std::map<int, std::int64_t> shares;
  if (weights.empty()) return shares;
  const auto counts = balance::weighted_shares(weights, total);
  auto count = counts.begin();
  for (const auto& [worker, rate] : rates_) shares[worker] = *count++;
  return shares;
}

bool Ledger::at_end() const noexcept {
  return epoch_ >= options_.epochs ||
         (options_.last_step > 0 && last_opened_ >= options_.last_step);
}

bool Ledger::may_open() const noexcept {
  if (closed_) return false;
  if (options_.consistency == Consistency::async) return true;
  return last_opened_ <= steps_done_ + options_.staleness;
}

Ledger::Step& Ledger::open() {
  Step step;
  const auto left = options_.dataset_size - offset_;
  const auto total = std::min(options_.global_batch, left);
  step.facts = {++last_opened_, epoch_, total, total == left};
  step.offset = offset_;
  step.free = {{offset_, total}};
  step.shares = shares(total);
  step.left = total;
  offset_ += total;
  if (step.facts.ends_epoch) {
    ++epoch_;
    offset_ = 0;
  }
  const bool due = options_.pause_every > 0 && last_opened_ % options_.pause_every == 0;
  closed_ = due || (step.facts.ends_epoch && options_.pause_at_epochs) || at_end();
  open_.push_back(std::move(step));
  return open_.back();
}

/// The first open step up to number `up_to` with samples left, `again`: also one that the worker
/// has had a lease of already.
Ledger::Step* Ledger::first_free(int worker, bool again, std::int64_t up_to) {
  for (Step& step : open_) {
    if (step.facts.number > up_to) return nullptr;
    if (!step.free.empty() && (again || !step.participants.contains(worker))) return &step;
  }
  return nullptr;
}

std::optional<SampleLease> Ledger::grant(int worker, TimePoint now) {
  if (!rates_.contains(worker)) return std::nullopt;
  constexpr auto kAny = std::numeric_limits<std::int64_t>::max();
  if (options_.consistency == Consistency::async) {
    // Samples of a worker that stays away do not wait for the end of the epoch.
    if (Step* step = first_free(worker, true, last_opened_ - kLeftBehind)) {
      return take(*step, worker, now);
    }
  }
  if (Step* step = first_free(worker, false, kAny)) return take(*step, worker, now);
  if (may_open()) return take(open(), worker, now);
  if (Step* step = first_free(worker, true, kAny)) return take(*step, worker, now);
  return std::nullopt;
}

SampleLease Ledger::take(Step& step, int worker, TimePoint now) {
  Range& range = step.free.front();
  const auto known = step.shares.find(worker);
  auto share = known != step.shares.end() ? known->second : shares(step.facts.total)[worker];
  share = std::clamp(share, std::int64_t{1}, range.count);
  SampleLease lease;
  lease.id = (static_cast<std::uint64_t>(worker) << 32) | ++leases_;
  lease.worker = worker;
  lease.step = step.facts.number;
  lease.epoch = step.facts.epoch;
  lease.offset = range.offset;
  lease.count = share;
  lease.denominator = options_.consistency == Consistency::async ? share : step.facts.total;
  lease.second_try = range.second_try;
  lease.granted = now;
  range.offset += share;
  range.count -= share;
  if (range.count == 0) step.free.erase(step.free.begin());
  step.participants.insert(worker);
  out_[lease.id] = lease;
  return lease;
}

bool Ledger::complete(std::uint64_t id, bool usable, TimePoint now) {
  const auto node = out_.extract(id);
  if (node.empty()) return false;
  const SampleLease& lease = node.mapped();
  if (const auto rate = rates_.find(lease.worker); rate != rates_.end()) {
    const auto measured = static_cast<double>(lease.count) / seconds_between(lease.granted, now);
    rate->second = rate->second > 0 ? kNewest * measured + (1 - kNewest) * rate->second : measured;
  }
  Step& step = step_of(lease);
  step.left -= lease.count;
  if (usable) step.usable[lease.offset] = id;
  if (options_.consistency == Consistency::async) {
    const auto part = static_cast<double>(lease.count) / static_cast<double>(options_.global_batch);
    if (usable) updates_.push_back({{id}, part});
  }
  end_steps();
  return true;
}

bool Ledger::revoke(std::uint64_t id, TimePoint now) {
  const auto node = out_.extract(id);
  if (node.empty()) return false;
  const SampleLease& lease = node.mapped();
  if (const auto rate = rates_.find(lease.worker); rate != rates_.end()) {
    const auto shown = static_cast<double>(lease.count) / seconds_between(lease.granted, now);
    rate->second = rate->second > 0 ? std::min(rate->second, shown) : shown;
  }
  give_back(lease, true);
  return true;
}

std::vector<std::uint64_t> Ledger::overdue(TimePoint now, double factor,
                                           std::chrono::milliseconds at_least) const {
  std::vector<std::uint64_t> late;
  for (const auto& [id, lease] : out_) {
    if (lease.second_try) continue;
    const double speed = rate(lease.worker);
    const double age = seconds_between(lease.granted, now);
    const double expected = speed > 0 ? static_cast<double>(lease.count) / speed : 0;
    const bool judged = speed > 0 && age > factor * expected;
    if (judged && age > std::chrono::duration<double>(at_least).count()) late.push_back(id);
  }
  return late;
}

void Ledger::end_steps() {
  while (!open_.empty() && open_.front().left == 0) {
    const Step& step = open_.front();
    if (options_.consistency != Consistency::async) {
      Update update;
      for (const auto& [offset, lease] : step.usable) update.leases.push_back(lease);
      updates_.push_back(std::move(update));
    }
    ended_.push_back(step.facts);
    steps_done_ = step.facts.number;
    open_.pop_front();
  }
}

void Ledger::abandon_open_steps() {
  closed_ = true;
  if (open_.empty()) return;
  const Step& first = open_.front();
  epoch_ = first.facts.epoch;
  offset_ = first.offset;
  last_opened_ = steps_done_;
  for (const auto& [id, lease] : out_) samples_repeated_ += lease.count;
  out_.clear();
  open_.clear();
}

std::vector<Update> Ledger::take_updates() {
  return std::exchange(updates_, {});
}

std::vector<EndedStep> Ledger::take_ended_steps() {
  return std::exchange(ended_, {});
}

}  // namespace bimetal::parallel::server
