// How a group notices that a call does not end: probes and deadlines.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "bimetal/comm/group/group_core.h"

namespace bimetal::comm {

void GroupCore::watch(const FlightPtr& flight) {
  const Deadline probe =
      min(Deadline::after(kProbeAfter), Deadline::after(flight->deadline.remaining() / 2));
  const bool probes = !flight->probed && !flight->call.point_to_point();
  flight->alarm = timer_.at(probes ? probe : flight->deadline,
                            [self = shared_from_this(), flight] { self->on_alarm(flight); });
}

void GroupCore::on_alarm(const FlightPtr& flight) {
  std::optional<Failure> failure;
  {
    std::lock_guard lock(mutex_);
    if (flight->ended || failure_) return;
    if (flight->deadline.expired()) {
      failure = timed_out(*flight);
    } else {
      flight->probed = true;
      watch(flight);
    }
  }
  if (failure) return fail(*failure, true);
  for (int to = 0; to < size(); ++to) {
    if (to != rank_) send_sign(to, flight->call, kProbePart);
  }
}

void GroupCore::send_sign(int to, const Call& call, std::uint32_t part) {
  auto header = call.header_to(id_, to);
  header.part = part;
  mesh_.send(members_[to], header, {}, [](std::exception_ptr) {});
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
Failure GroupCore::timed_out(const Flight& flight) const {
  const Flight* stuck = &flight;
  if (!flight.call.point_to_point()) {
    const auto first = std::ranges::find_if(
        flights_, [](const auto& f) { return !f->call.point_to_point() && !f->ended; });
    stuck = first->get();
  }
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
  std::set<int> silent;
  if (stuck->probed) {
    std::ranges::copy_if(members_, std::inserter(silent, silent.end()), [&](int peer) {
      return peer != mesh_.rank() && !stuck->heard_of.contains(peer);
    });
  }
  if (!silent.empty()) text += "; no sign of this call from " + names(silent);
  const auto& blamed = silent.empty() ? waited_for : silent;
  return {ErrorCode::Timeout, std::move(text),
          blamed.size() == 1 ? std::optional(*blamed.begin()) : std::nullopt};
}

}  // namespace bimetal::comm
