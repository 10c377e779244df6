// What becomes of leases: complete, revoked, late; and what they tell of their workers' speed.
#include <algorithm>
#include <cmath>
#include <utility>

#include "bimetal/parallel/server/ledger.h"

namespace bimetal::parallel::server {

namespace {

// bounded: a worker waits for leases that are due within that part of the time they take, or are
// late by no more. Shares let all finish together, so that this is the rule and waiting is short;
// whoever is slower than that is passed by.
constexpr double kPatience = 0.25;

double age_of(const SampleLease& lease, TimePoint now) {
  return std::max(std::chrono::duration<double>(now - lease.granted).count(), 1e-6);
}

}  // namespace

void Ledger::learn(const SampleLease& lease, double compute_seconds, TimePoint now) {
  const auto speed = speeds_.find(lease.worker);
  if (speed == speeds_.end()) return;
  speed->second.observe(lease.count, age_of(lease, now), compute_seconds);
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
  if (speed == speeds_.end() || !speed->second.exchanged()) return;
  learn(node.mapped(), compute_seconds, now);
}

std::vector<std::uint64_t> Ledger::overdue(TimePoint now, double factor,
                                           std::chrono::milliseconds at_least) const {
  std::vector<std::uint64_t> late;
  for (const auto& [id, lease] : out_) {
    const auto speed = speeds_.find(lease.worker);
    if (speed == speeds_.end() || !speed->second.known() || !speed->second.exchanged()) continue;
    const double age = age_of(lease, now);
    const bool judged = !lease.second_try && age > factor * speed->second.seconds(lease.count);
    if (judged && age > std::chrono::duration<double>(at_least).count()) late.push_back(id);
  }
  return late;
}

bool Ledger::about_to_end(TimePoint now) const {
  return !out_.empty() && std::ranges::all_of(out_, [&](const auto& entry) {
    const SampleLease& lease = entry.second;
    const auto speed = speeds_.find(lease.worker);
    if (speed == speeds_.end() || !speed->second.known()) return false;
    const double expected = speed->second.seconds(lease.count);
    return std::abs(expected - age_of(lease, now)) <= kPatience * expected;
  });
}

std::vector<std::uint64_t> Ledger::older_than(TimePoint now, std::chrono::milliseconds age) const {
  std::vector<std::uint64_t> old;
  for (const auto& [id, lease] : out_) {
    if (now - lease.granted > age) old.push_back(id);
  }
  return old;
}

}  // namespace bimetal::parallel::server
