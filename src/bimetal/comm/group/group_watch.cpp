// How a group notices that a call does not end: probes and deadlines.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "bimetal/comm/group/group_core.h"

namespace bimetal::comm {

/// A message waits for its sender alone; it is looked for where it may not be connected.
void GroupCore::watch(const FlightPtr& flight) {
  const Deadline probe =
      min(Deadline::after(kProbeAfter), Deadline::after(flight->deadline.remaining() / 2));
  const bool probes = !flight->probed && !(flight->call.point_to_point() && mesh_.complete());
  flight->alarm = timer_.at(probes ? probe : flight->deadline,
                            [self = shared_from_this(), flight] { self->on_alarm(flight); });
}

void GroupCore::on_alarm(const FlightPtr& flight) {
  std::optional<Failure> failure;
  {
    std::lock_guard lock(mutex_);
    if (flight->ended || failure_) return;
    if (!flight->deadline.expired()) {
      flight->probed = true;
      watch(flight);
    } else if (!mesh_.complete() && !flight->call.point_to_point() &&
               silent_in(first_stuck(*flight)).empty() && !std::exchange(flight->gives_way, true)) {
      flight->alarm = timer_.at(Deadline::after(kWayGiven),
                                [self = shared_from_this(), flight] { self->on_alarm(flight); });
      return;
    } else {
      failure = timed_out(*flight);
    }
  }
  if (failure) return fail(*failure, true);
  send_signs(flight);
}

/// To all, or where not all are connected to those that are, and to those that this rank waits for.
void GroupCore::send_signs(const FlightPtr& flight) {
  const auto awaited = flight->transfers.peers();
  if (flight->call.point_to_point()) {
    // One from anybody is left to those that send.
    if (awaited.size() == 1) mesh_.open(*awaited.begin());
    return;
  }
  std::set<int> told;
  for (int to = 0; to < size(); ++to) {
    const int peer = members_[to];
    if (to == rank_ || !(hears(to, false) || awaited.contains(peer))) continue;
    told.insert(peer);
    auto header = flight->call.header_to(id_, to);
    header.part = kProbePart;
    mesh_.send(peer, header, {}, [](std::exception_ptr) {});
  }
  std::lock_guard lock(mutex_);
  flight->told = std::move(told);
}

void GroupCore::on_sign(int peer, std::uint64_t sequence) {
  std::lock_guard lock(mutex_);
  for (const auto& flight : flights_) {
    if (!flight->call.point_to_point() && flight->call.sequence == sequence) {
      flight->heard_of.insert(peer);
    }
  }
}

// Under the lock. Collectives run one after the other, so that a late one may only be waiting for
// the first that is not done: that one tells who is to blame.
const Flight& GroupCore::first_stuck(const Flight& flight) const {
  if (flight.call.point_to_point()) return flight;
  return **std::ranges::find_if(
      flights_, [](const auto& f) { return !f->call.point_to_point() && !f->ended; });
}

// Under the lock: those that know of this call, if they live, and have not said that they make it.
std::set<int> GroupCore::silent_in(const Flight& flight) const {
  std::set<int> silent;
  std::ranges::set_difference(flight.told, flight.heard_of, std::inserter(silent, silent.end()));
  return silent;
}

// Under the lock.
Failure GroupCore::timed_out(const Flight& flight) const {
  const Flight* const stuck = &first_stuck(flight);
  const auto described = [&](const Flight& f) {
    return describe_numbered(f.call.header_to(id_, rank_));
  };
  using Seconds = std::chrono::duration<double>;
  auto text =
      fmt::format("{} was not done on rank {} within {:.3g} s", described(flight), mesh_.rank(),
                  std::max(0.0, Seconds(flight.deadline.time() - flight.begun).count()));
  if (stuck != &flight) text += fmt::format(", held up by {}", described(*stuck));
  const std::set<int> waited_for = stuck->transfers.peers();
  if (!waited_for.empty()) text += ": it waits for " + names(waited_for);
  const std::set<int> silent = silent_in(*stuck);
  if (!silent.empty()) text += "; no sign of this call from " + names(silent);
  const auto& blamed = silent.empty() ? waited_for : silent;
  return {ErrorCode::Timeout, std::move(text),
          blamed.size() == 1 ? std::optional(*blamed.begin()) : std::nullopt};
}

}  // namespace bimetal::comm
