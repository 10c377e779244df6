#include "bimetal/parallel/server/ledger/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

// async: samples that nobody took from a step so far behind the newest go to the next worker that
// asks.
constexpr std::int64_t kLeftBehind = 2;

void check_ledger(const LedgerOptions& options) {
  const bool fits = options.dataset_size >= 1 && options.global_batch >= 1 &&
                    options.global_batch <= balance::kMaxBatch && options.epochs >= 0 &&
                    options.staleness >= 0 && options.start.steps_done >= 0 &&
                    options.start.epoch >= 0 && options.start.offset >= 0 &&
                    options.start.offset <= options.dataset_size;
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
              fmt::format("servers.consistency is '{}'; known: sync, async, bounded", name));
}

Prefetch prefetch_of(std::string_view name) {
  if (name == "auto") return Prefetch::automatic;
  if (name == "on") return Prefetch::on;
  if (name == "off") return Prefetch::off;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("servers.prefetch is '{}'; known: auto, on, off", name));
}

Ledger::Ledger(const LedgerOptions& options)
    : options_((check_ledger(options), options)),
      steps_done_(options.start.steps_done),
      last_opened_(options.start.steps_done),
      epoch_(options.start.epoch),
      offset_(options.start.offset),
      leases_(options.first_lease) {
  if (options_.consistency == Consistency::sync) options_.staleness = 0;
  if (offset_ == options_.dataset_size) {
    ++epoch_;
    offset_ = 0;
  }
  resume();
  closed_ |= options_.pause_first;
}

void Ledger::add_worker(int worker, const WorkerSpeed& speed) {
  speeds_[worker] = speed;
}

void Ledger::remove_worker(int worker) {
  speeds_.erase(worker);
  resting_.erase(worker);
  gains_.erase(worker);
  free_since_.erase(worker);
  std::erase_if(revoked_, [&](const auto& lease) { return lease.second.worker == worker; });
  for (auto lease = out_.begin(); lease != out_.end();) {
    if (lease->second.worker != worker) {
      ++lease;
      continue;
    }
    give_back(lease->second, lease->second.second_try);
    lease = out_.erase(lease);
  }
}

void Ledger::set_resting(int worker, bool resting) {
  if (resting && speeds_.contains(worker)) {
    resting_.insert(worker);
  } else {
    resting_.erase(worker);
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
  const auto found = speeds_.find(worker);
  if (found == speeds_.end()) return 0;
  const auto share = shares(options_.global_batch).at(worker);
  return found->second.rate(std::max(share, std::int64_t{1}));
}

std::map<int, std::int64_t> Ledger::shares(std::int64_t total) const {
  std::map<int, std::int64_t> shares;
  if (speeds_.empty()) return shares;
  std::vector<balance::Device> devices;
  const bool all_rest = resting_.size() == speeds_.size();
  for (const auto& [worker, speed] : speeds_) {
    auto& device = devices.emplace_back();
    if (resting_.contains(worker) && !all_rest) device.cap = 0;
    if (speed.known()) device.cost = speed.cost();
    // Nobody waits for a step's last lease: only the time of each sample counts.
    if (speed.known() && options_.consistency == Consistency::async) {
      device.cost = balance::CostModel(0, std::max(speed.cost().beta(), 1e-9));
    }
  }
  const auto counts = balance::balanced_shares(devices, total);
  auto count = counts.begin();
  for (const auto& [worker, speed] : speeds_) shares[worker] = *count++;
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
  step.weight = weight(epoch_, offset_, total);
  step.free = unvisited(total);
  step.shares = shares(total);
  for (const Range& range : step.free) step.left += range.count;
  for (auto& [worker, speed] : speeds_) {
    if (step.shares[worker] == 0) speed.pass_over();
  }
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

/// The step ends sooner without this worker, and others are there to do it.
bool Ledger::left_out(const Step& step, int worker) const {
  if (options_.consistency == Consistency::async) return false;
  const auto own = step.shares.find(worker);
  if (own == step.shares.end() || own->second > 0) return false;
  return std::ranges::any_of(step.shares, [&](const auto& share) {
    const int other = share.first;
    return share.second > 0 && speeds_.contains(other) && !resting_.contains(other) &&
           !step.participants.contains(other);
  });
}

/// The samples among the next `count` that nobody had used before this ledger began.
std::vector<Ledger::Range> Ledger::unvisited(std::int64_t count) const {
  std::vector<Range> free;
  std::int64_t begin = offset_;
  const std::int64_t end = offset_ + count;
  std::vector<SampleRun> used;
  std::ranges::copy_if(options_.start.visited, std::back_inserter(used), [&](const SampleRun& run) {
    return run.epoch == epoch_ && run.offset < end && run.offset + run.count > begin;
  });
  std::ranges::sort(used, {}, &SampleRun::offset);
  for (const SampleRun& run : used) {
    if (run.offset > begin) free.push_back({begin, run.offset - begin});
    begin = std::max(begin, run.offset + run.count);
  }
  if (begin < end) free.push_back({begin, end - begin});
  return free;
}

/// The first open step up to number `up_to` with samples left, `again`: also one that the worker
/// has had a lease of already.
Ledger::Step* Ledger::first_free(int worker, bool again, std::int64_t up_to) {
  for (Step& step : open_) {
    if (step.facts.number > up_to) return nullptr;
    if (step.free.empty() || left_out(step, worker)) continue;
    if (again || !step.participants.contains(worker)) return &step;
  }
  return nullptr;
}

std::optional<SampleLease> Ledger::grant(int worker, TimePoint now) {
  if (!speeds_.contains(worker)) return std::nullopt;
  constexpr auto kAny = std::numeric_limits<std::int64_t>::max();
  if (options_.consistency == Consistency::async) {
    // Samples of a worker that stays away do not wait for the end of the epoch.
    const auto own_lead = static_cast<std::int64_t>(leases_at_once(worker)) - 1;
    if (Step* step = first_free(worker, true, last_opened_ - kLeftBehind - own_lead)) {
      return take(*step, worker, now);
    }
  }
  if (Step* step = first_free(worker, false, kAny)) return take(*step, worker, now);
  const bool waits = options_.consistency == Consistency::bounded && !holds_any(worker) &&
                     worth_waiting_for_all(now);
  while (!waits && may_open()) {
    Step& step = open();
    if (step.free.empty()) {
      end_steps();
    } else if (left_out(step, worker)) {
      break;
    } else {
      return take(step, worker, now);
    }
  }
  // Others may take the rest of a step before this worker has time for it.
  if (holds_any(worker)) return std::nullopt;
  if (Step* step = first_free(worker, true, kAny)) return take(*step, worker, now);
  return std::nullopt;
}

std::int64_t Ledger::weight(std::int64_t epoch, std::int64_t offset, std::int64_t count) const {
  return options_.weight ? options_.weight(epoch, offset, count) : count;
}

SampleLease Ledger::take(Step& step, int worker, TimePoint now) {
  Range& range = step.free.front();
  // One that came, or was needed, only after the step had been opened gets the share that it would
  // get now.
  auto share = step.shares[worker];
  if (share == 0) share = shares(step.facts.total)[worker];
  share = std::clamp(share, std::int64_t{1}, range.count);
  SampleLease lease;
  lease.id = (static_cast<std::uint64_t>(worker) << 32) | ++leases_;
  lease.worker = worker;
  lease.step = step.facts.number;
  lease.epoch = step.facts.epoch;
  lease.offset = range.offset;
  lease.count = share;
  lease.weight = weight(lease.epoch, lease.offset, share);
  lease.denominator = options_.consistency == Consistency::async ? lease.weight : step.weight;
  lease.second_try = range.second_try;
  lease.ahead = holds_any(worker);
  lease.granted = now;
  range.offset += share;
  range.count -= share;
  if (range.count == 0) step.free.erase(step.free.begin());
  step.participants.insert(worker);
  out_[lease.id] = lease;
  return lease;
}

void Ledger::end_steps() {
  while (!open_.empty() && open_.front().left == 0) {
    const Step step = std::move(open_.front());
    open_.pop_front();
    steps_done_ = step.facts.number;
    ended_.push_back(step.facts);
    if (options_.consistency == Consistency::async) continue;
    Update update;
    for (const auto& [offset, lease] : step.usable) update.leases.push_back(lease);
    update.after = position();
    updates_.push_back(std::move(update));
  }
}

Position Ledger::position() const {
  if (open_.empty()) return {steps_done_, epoch_, offset_, {}};
  Position position{steps_done_, open_.front().facts.epoch, open_.front().offset, {}};
  for (const Step& step : open_) {
    position.visited.insert(position.visited.end(), step.visited.begin(), step.visited.end());
  }
  return position;
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
