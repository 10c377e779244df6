// Workers and servers that are lost, silent or slow.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/parallel/server/coordinator.h"

namespace bimetal::parallel::server {
namespace {

// An idle worker takes over a lease that has taken that many times as long as expected.
constexpr double kOverdueFactor = 3;
constexpr std::chrono::milliseconds kOverdueAtLeast{1500};

}  // namespace

void Coordinator::heard(int worker, TimePoint when) {
  Worker& known = workers_.at(worker);
  known.heard = std::max(known.heard, when);
}

void Coordinator::lost(int worker, const std::string& why, TimePoint now) {
  Worker& gone = workers_.at(worker);
  if (!gone.figures.here) return;
  gone.figures.here = false;
  gone.figures.lost = !why.empty();
  gone.joined = false;
  gone.taken_back.clear();
  for (const auto lease : std::vector(gone.leases)) {
    // Its last work, done before it left, is only on its way through the servers.
    const bool done = pending_.contains(lease) && pending_.at(lease).done;
    if (!why.empty() || !done) take_back(lease, {}, now);
  }
  gone.leaving = !gone.leases.empty();
  if (!gone.leaving) ledger_.remove_worker(worker);
  notice(why.empty()
             ? fmt::format("{} has left", name_of(worker))
             : fmt::format("{} is lost: {}; the job goes on without it", name_of(worker), why));
  hand_out(now);
}

void Coordinator::server_lost(int server, const std::string& why, TimePoint now) {
  if (options_.servers.erase(server) == 0) return;
  const auto copy = std::ranges::find_if(options_.servers, [&](int other) {
    return other % options_.shards == server % options_.shards;
  });
  if (copy == options_.servers.end()) {
    failed_ = true;
    tell_(FailedEvent{
        Error(ErrorCode::PeerLost,
              fmt::format("server {} is lost: {}; its part of the parameters is gone with it",
                          server, why),
              server)});
    return;
  }
  tell_(ServerLostEvent{server});
  notice(
      fmt::format("server {} is lost: {}; server {} keeps what it kept, without a copy from now "
                  "on",
                  server, why, *copy));
  std::vector<std::uint64_t> waiting;
  for (const auto& [lease, pending] : pending_) waiting.push_back(lease);
  for (const auto lease : waiting) {
    if (pending_.contains(lease)) try_settle(lease, now);
  }
}

void Coordinator::wake(Worker& worker) {
  if (!std::exchange(worker.silent, false)) return;
  ledger_.set_resting(worker.figures.number, false);
  notice(fmt::format("{} is back", name_of(worker.figures.number)));
}

/// `why` is empty where the worker itself is gone.
void Coordinator::take_back(std::uint64_t lease, const std::string& why, TimePoint now) {
  const auto pending = pending_.extract(lease);
  if (pending.empty()) return;
  const Lease& work = pending.mapped().lease;
  const auto& reported = pending.mapped().done;
  Worker& worker = workers_.at(worker_of(lease));
  std::erase(worker.leases, lease);
  if (work.work == Work::evaluate) {
    if (evaluation_) evaluation_->free.emplace_back(work.offset, work.count);
  } else {
    port_.send_drop(lease);
    ledger_.revoke(lease, /*slow=*/!why.empty());
  }
  if (why.empty()) return;
  // One that has reported it, and whose gradients are not everywhere yet, is free already.
  if (reported) {
    ledger_.finished_late(lease, reported->compute_seconds, now);
  } else if (worker.figures.here) {
    worker.taken_back.insert(lease);
  }
  if (worker.leaving && worker.leases.empty()) ledger_.remove_worker(worker.figures.number);
  notice(fmt::format("{} {}: its {} samples go to others", name_of(worker_of(lease)), why,
                     work.count));
}

void Coordinator::tick(TimePoint now) {
  bool any_here = false, any_idle = false;
  for (auto& [number, worker] : workers_) {
    if (!worker.figures.here) {
      any_here |= worker.leaving && !worker.leases.empty();
      continue;
    }
    const bool silent = now - worker.heard > options_.silent_after;
    any_here |= !silent;
    if (silent && !worker.leases.empty()) {
      for (const auto lease : std::vector(worker.leases))
        take_back(lease, "says nothing any more", now);
    } else if (silent && !worker.silent) {
      notice(fmt::format("{} says nothing any more", name_of(number)));
    }
    any_idle |= !silent && worker.joined && worker.leases.empty() && worker.taken_back.empty();
    if (!silent) wake(worker);
    worker.silent = silent;
    if (silent) ledger_.set_resting(number, true);
  }
  if (any_idle) {
    for (const auto lease : ledger_.overdue(now, kOverdueFactor, kOverdueAtLeast)) {
      take_back(lease, "takes much longer than it did", now);
    }
  }
  for (const auto lease : ledger_.older_than(now, options_.lease_timeout)) {
    take_back(lease, "has not finished within parallel.timeout_s", now);
  }
  if (stopping_ && !any_here) ledger_.abandon_open_steps();
  advance();
  hand_out(now);
  if (any_here) last_with_worker_ = now;
  if (now - last_with_worker_ > options_.join_timeout && !failed_) {
    failed_ = true;
    tell_(FailedEvent{
        Error(ErrorCode::Timeout,
              fmt::format("no worker was there for {:.0f} s (cluster.join_timeout_s)",
                          std::chrono::duration<double>(options_.join_timeout).count()))});
  }
}

}  // namespace bimetal::parallel::server
