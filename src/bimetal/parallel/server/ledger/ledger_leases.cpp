// The ends of leases: complete, revoked, late; and the measurements of their workers' speed.
#include <algorithm>
#include <utility>

#include "bimetal/parallel/server/ledger/ledger.h"

namespace bimetal::parallel::server {

namespace {

// One that computes, one whose parameters come meanwhile, one whose gradients are still leaving,
// and one that the worker knows of before it can ask for its parameters: else a server or a worker
// that is late for a moment lets a direction of the link run dry.
constexpr std::int64_t kAtOnce = 4;
// bounded: whether a worker waits for a lease that has been out for `phase` times as long as
// expected, instead of going `ahead` so many steps of the newest parameters. Shares let all finish
// together, so that waiting is short as a rule: the lease is due soon, or a little late. One that
// has only begun means that the worker came to be ahead by a whole step, when another was late; by
// going on it would stay so, its gradients old for no gain. In between it goes on, so that the pace
// is that of all workers' means, not of the slowest at each step. Gradients two steps old cost far
// more than those of one: so far it goes only where somebody is late.
bool worth_waiting(double phase, std::size_t ahead) {
  if (ahead > 1) return phase <= 1.5;
  return phase <= 0.25 || (phase >= 0.75 && phase <= 1.25);
}

}  // namespace

std::size_t Ledger::leases_at_once(int worker) const {
  const auto bounded = options_.consistency != Consistency::async;
  const auto most = bounded ? std::min(kAtOnce, options_.staleness + 1) : kAtOnce;
  if (options_.prefetch == Prefetch::on) return static_cast<std::size_t>(most);
  const auto gain = gains_.find(worker);
  const bool gains =
      options_.prefetch == Prefetch::automatic && gain != gains_.end() && gain->second.worthwhile();
  return static_cast<std::size_t>(gains ? most : 1);
}

bool Ledger::holds_any(int worker) const {
  const auto first = out_.lower_bound(static_cast<std::uint64_t>(worker) << 32);
  return first != out_.end() && first->second.worker == worker;
}

/// Seconds since its worker could turn to it: one that was granted ahead has waited its turn.
double Ledger::turned_to(const SampleLease& lease, TimePoint now) const {
  const auto free = free_since_.find(lease.worker);
  const auto since =
      free == free_since_.end() ? lease.granted : std::max(lease.granted, free->second);
  return std::max(std::chrono::duration<double>(now - since).count(), 1e-6);
}

void Ledger::learn(const SampleLease& lease, double compute_seconds, TimePoint now) {
  const auto speed = speeds_.find(lease.worker);
  if (speed == speeds_.end()) return;
  const double seconds = turned_to(lease, now);
  speed->second.observe(lease.count, seconds, compute_seconds, lease.ahead);
  gains_[lease.worker].observe(lease.count, seconds, compute_seconds, lease.ahead);
  free_since_[lease.worker] = now;
}

bool Ledger::complete(std::uint64_t id, bool usable, double compute_seconds, TimePoint now) {
  const auto node = out_.extract(id);
  if (node.empty()) return false;
  const SampleLease& lease = node.mapped();
  learn(lease, compute_seconds, now);
  Step& step = step_of(lease);
  step.left -= lease.count;
  if (usable) step.usable[lease.offset] = id;
  const bool async = options_.consistency == Consistency::async;
  if (async) step.visited.push_back({lease.epoch, lease.offset, lease.count});
  end_steps();
  if (async && usable) {
    const auto part = static_cast<double>(lease.count) / static_cast<double>(options_.global_batch);
    updates_.push_back({{id}, part, position()});
  }
  return true;
}

bool Ledger::revoke(std::uint64_t id, bool slow) {
  auto node = out_.extract(id);
  if (node.empty()) return false;
  give_back(node.mapped(), slow || node.mapped().second_try);
  if (slow) revoked_.insert(std::move(node));
  return true;
}

void Ledger::finished_late(std::uint64_t id, double compute_seconds, TimePoint now) {
  const auto node = revoked_.extract(id);
  if (node.empty()) return;
  // The first of all may have been late for any reason, and would be taken for the rule.
  const auto speed = speeds_.find(node.mapped().worker);
  if (speed == speeds_.end()) return;
  if (speed->second.exchanged()) learn(node.mapped(), compute_seconds, now);
  free_since_[node.mapped().worker] = now;
}

std::vector<std::uint64_t> Ledger::overdue(TimePoint now, double factor,
                                           std::chrono::milliseconds at_least) const {
  std::vector<std::uint64_t> late;
  std::map<int, double> expected;  // of a worker's leases up to this one
  for (const auto& [id, lease] : out_) {
    const auto speed = speeds_.find(lease.worker);
    if (speed == speeds_.end() || !speed->second.known() || !speed->second.exchanged()) continue;
    const double whole = expected[lease.worker] += speed->second.seconds(lease.count, lease.ahead);
    const double age = turned_to(lease, now);
    const bool judged = !lease.second_try && age > factor * whole;
    if (judged && age > std::chrono::duration<double>(at_least).count()) late.push_back(id);
  }
  return late;
}

bool Ledger::worth_waiting_for_all(TimePoint now) const {
  return !out_.empty() && std::ranges::all_of(out_, [&](const auto& entry) {
    const SampleLease& lease = entry.second;
    const auto speed = speeds_.find(lease.worker);
    if (speed == speeds_.end() || !speed->second.known()) return false;
    return worth_waiting(turned_to(lease, now) / speed->second.seconds(lease.count), open_.size());
  });
}

std::vector<std::uint64_t> Ledger::older_than(TimePoint now, std::chrono::milliseconds age) const {
  std::vector<std::uint64_t> old;
  std::set<int> seen;
  for (const auto& [id, lease] : out_) {
    const bool oldest = seen.insert(lease.worker).second;
    if (oldest && turned_to(lease, now) > std::chrono::duration<double>(age).count()) {
      old.push_back(id);
    }
  }
  return old;
}

}  // namespace bimetal::parallel::server
