#include "bimetal/comm/group/group_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/comm/fabric.h"

namespace bimetal::comm {
namespace {

using Clock = Deadline::Clock;

int index_of(const std::vector<int>& members, int world_rank) {
  const auto found = std::find(members.begin(), members.end(), world_rank);
  return static_cast<int>(std::distance(members.begin(), found));
}

}  // namespace

GroupCore::GroupCore(std::uint32_t id, std::vector<int> members, std::uint32_t epoch,
                     Fabric& fabric)
    : id_(id),
      members_(std::move(members)),
      rank_(index_of(members_, fabric.mesh().rank())),
      epoch_(epoch),
      mesh_(fabric.mesh()),
      messages_(id, members_, mesh_),
      mailbox_(fabric.mailbox()),
      timer_(fabric.timer()),
      recorder_(fabric.recorder()) {}

void GroupCore::enter() {
  mailbox_.add_group(id_, members_, weak_from_this());
}

void GroupCore::share_memory_with(const std::vector<int>& ranks) {
  std::vector<int> peers;
  for (const int rank : ranks) {
    if (rank != rank_) peers.push_back(members_[rank]);
  }
  messages_.use_memory(peers);
}

std::shared_ptr<Flight> GroupCore::start(Call call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool collective = !call.point_to_point();
  if (collective) call.sequence = next_sequence_;
  call.epoch = epoch_;
  auto flight = std::make_shared<Flight>(std::move(call), deadline);
  if (failure_) {
    const Failure failure = *failure_;
    lock.unlock();
    refuse(flight, failure);
    return flight;
  }
  if (collective) ++next_sequence_;
  flight->record =
      recorder_.created(id_, size(), flight->call, flight->deadline.time() - flight->begun);
  flights_.push_back(flight);
  if (size() > 1) watch(flight);
  lock.unlock();
  if (collective) mailbox_.open_call(id_, flight->call);
  return flight;
}

/// A call that comes after the failure. It may be the first to fail by it, if none was under way.
void GroupCore::refuse(const FlightPtr& flight, const Failure& failure) {
  const bool closed_here = failure.code == ErrorCode::Aborted && failure.rank == mesh_.rank();
  if (!closed_here) {
    flight->record =
        recorder_.created(id_, size(), flight->call, flight->deadline.time() - flight->begun);
    note_end(*flight, failure);
  }
  flight->ended = true;
  flight->work->finish(failure);
}

bool GroupCore::start_at_once(Call& call) {
  {
    std::lock_guard lock(mutex_);
    const bool busy =
        std::ranges::any_of(flights_, [](const auto& f) { return !f->call.point_to_point(); });
    if (failure_ || busy) return false;
    call.sequence = next_sequence_++;
    call.epoch = epoch_;
  }
  mailbox_.open_call(id_, call);
  return true;
}

void GroupCore::finish_at_once(const Call& call) {
  mailbox_.finish_call(id_, call.sequence);
  recorder_.passed(id_, size(), call, "shared memory at once");
}

std::shared_ptr<Flight> GroupCore::take_off(Call call, Deadline deadline) {
  auto flight = std::make_shared<Flight>(std::move(call), deadline);
  std::lock_guard lock(mutex_);
  flight->record =
      recorder_.created(id_, size(), flight->call, flight->deadline.time() - flight->begun);
  if (failure_) flight->transfers.fail(*failure_);
  flights_.push_back(flight);
  watch(flight);
  return flight;
}

void GroupCore::finish(const FlightPtr& flight, std::optional<Failure> failure) {
  {
    std::lock_guard lock(mutex_);
    flight->ended = true;
    timer_.cancel(flight->alarm);
  }
  if (!flight->call.point_to_point()) mailbox_.finish_call(id_, flight->call.sequence);
  note_end(*flight, failure);
  flight->work->finish(std::move(failure));
  std::lock_guard lock(mutex_);
  flights_.remove(flight);
  ended_.notify_all();
}

void GroupCore::note_start(const Flight& flight) {
  recorder_.started(flight.record);
  if (!log_enabled(LogLevel::trace)) return;
  log(LogLevel::trace, "rank {}, group {}: {} begins", mesh_.rank(), id_,
      describe_numbered(flight.call.header_to(id_, rank_)));
}

void GroupCore::note_algorithm(const Flight& flight, const char* name) {
  recorder_.chose(flight.record, name);
  if (!log_enabled(LogLevel::trace)) return;
  log(LogLevel::trace, "rank {}, group {}: {} uses {}", mesh_.rank(), id_,
      describe_numbered(flight.call.header_to(id_, rank_)), name);
}

/// Before the call's waiters wake: they find the dump written.
void GroupCore::note_end(const Flight& flight, const std::optional<Failure>& failure) {
  recorder_.completed(flight.record, failure);
  if (failure) recorder_.write();
  if (!log_enabled(LogLevel::trace)) return;
  using Milliseconds = std::chrono::duration<double, std::milli>;
  log(LogLevel::trace, "rank {}, group {}: {} {} after {:.3f} ms", mesh_.rank(), id_,
      describe_numbered(flight.call.header_to(id_, rank_)),
      failure ? "ended: " + failure->message : "was done",
      Milliseconds(Clock::now() - flight.begun).count());
}

Transfers::Ticket GroupCore::receive(const FlightPtr& flight, int from, std::span<std::byte> into) {
  const int peer = members_[from];
  const auto ticket = flight->transfers.begin_receive(peer);
  mailbox_.receive(peer, flight->call.header_from(id_, from), into,
                   [flight, ticket] { flight->transfers.end_receive(ticket); });
  return ticket;
}

void GroupCore::receive_from_anybody(const FlightPtr& flight, std::span<std::byte> into) {
  std::vector<int> others;
  std::ranges::copy_if(members_, std::back_inserter(others),
                       [&](int member) { return member != mesh_.rank(); });
  const auto ticket = flight->transfers.begin_receive(std::move(others));
  mailbox_.receive_from_anybody(
      flight->call.header_from(id_, rank_), into,
      [self = shared_from_this(), flight, ticket](int peer) {
        flight->transfers.receive_from(ticket, peer);
        flight->work->came_from(index_of(self->members_, peer));
      },
      [flight, ticket] { flight->transfers.end_receive(ticket); });
}

void GroupCore::receive(const FlightPtr& flight, int from, std::span<std::byte> into,
                        Landing landing) {
  const int peer = members_[from];
  const auto ticket = flight->transfers.begin_receive(peer);
  auto landed = [self = shared_from_this(), flight, ticket, into, to = landing.to,
                 part = landing.part] {
    if (to >= 0) self->send_on(flight, to, part, into);
    flight->transfers.end_receive(ticket);
  };
  mailbox_.receive(peer, flight->call.header_from(id_, from), into, std::move(landed),
                   std::move(landing.combine));
}

/// Before the receive ends, so that the call is never idle in between.
void GroupCore::send_on(const FlightPtr& flight, int to, std::uint32_t part,
                        std::span<const std::byte> payload) {
  try {
    send(flight, to, part, payload);
  } catch (const Error&) {
    // The group has failed, by which this receive has been given up: there is nothing to send.
  }
}

void GroupCore::send(const FlightPtr& flight, int to, std::uint32_t part,
                     std::span<const std::byte> payload) {
  const int peer = members_[to];
  flight->transfers.begin_send(peer);
  auto header = flight->call.header_to(id_, to);
  header.part = part;
  auto done = [self = shared_from_this(), flight, peer](const std::exception_ptr& error) {
    if (error) {
      self->on_unsent(flight, peer, error);
    } else {
      flight->transfers.end_send(peer);
    }
  };
  if (flight->call.point_to_point()) {
    messages_.send(peer, header, payload, std::move(done));
  } else {
    mesh_.send(peer, header, payload, std::move(done));
  }
}

void GroupCore::on_unsent(const FlightPtr& flight, int peer, const std::exception_ptr& error) {
  Failure failure{ErrorCode::PeerLost, "", peer};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& cause) {
    failure.message = cause.what();
  }
  // A peer that is leaving after a failure has said why: its words may still be on their way in.
  // The send ends after the failure is known, so that nobody takes its end for success.
  timer_.at(Deadline::after(kLastWords), [self = shared_from_this(), flight, peer, failure] {
    self->fail(failure, true);
    flight->transfers.end_send(peer);
  });
}

std::optional<Failure> GroupCore::still_waiting(const FlightPtr& flight, int rank) {
  if (const auto failure = flight->transfers.failure()) throw failure->to_error();
  flight->transfers.await(members_[rank]);
  return mailbox_.departed(flight->call.header_from(id_, rank), members_[rank]);
}

void GroupCore::fail(const Failure& failure, bool tell_others) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    telling_ = tell_others;
    for (const auto& flight : flights_) {
      recorder_.waits_for(flight->record, flight->transfers.peers());
      flight->transfers.fail(failure);
    }
  }
  log(LogLevel::info, "rank {}, group {} has failed: {}: {}", mesh_.rank(), id_,
      to_string(failure.code), failure.message);
  if (tell_others) {
    send_abort({failure});
    std::lock_guard lock(mutex_);
    telling_ = false;
    told_.notify_all();
  }
  // The rest ends calls and so runs their callbacks, which must not happen inside whatever the
  // caller is doing.
  timer_.at(Deadline::at(Clock::now()), [self = shared_from_this()] { self->give_up(); });
}

std::optional<Failure> GroupCore::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void GroupCore::give_up() {
  messages_.give_up();
  mailbox_.fail_group(id_);
  timer_.at(Deadline::after(kGrace), [self = shared_from_this()] { self->drop_stuck_peers(); });
}

void GroupCore::drop_stuck_peers() {
  std::set<int> stuck;
  {
    std::lock_guard lock(mutex_);
    if (flights_.empty()) return;
    for (const auto& flight : flights_) stuck.merge(flight->transfers.peers());
  }
  for (const int peer : stuck) mesh_.drop(peer);
  timer_.at(Deadline::after(kGrace), [self = shared_from_this()] { self->drop_stuck_peers(); });
}

bool GroupCore::wait_idle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return ended_.wait_until(lock, deadline.time(), [&] { return flights_.empty(); });
}

bool GroupCore::end() {
  std::lock_guard lock(mutex_);
  if (failure_) return true;
  failure_ = Failure{ErrorCode::Aborted, fmt::format("rank {} has closed this group", mesh_.rank()),
                     mesh_.rank()};
  return false;
}

void GroupCore::leave(bool farewell) {
  const AbortMessage last_words = farewell ? AbortMessage{} : AbortMessage{failure()};
  if (farewell) send_abort(last_words);
  {
    // The caller knows of the failure as soon as its call has ended. The others must hear of it
    // before the goodbye that follows, or they would take this rank for the one that is to blame.
    std::unique_lock lock(mutex_);
    told_.wait(lock, [&] { return !telling_; });
  }
  mailbox_.remove_group(id_, encode(last_words));
}

void GroupCore::wait_told(Deadline deadline) {
  std::unique_lock lock(mutex_);
  told_.wait_until(lock, deadline.time(), [&] { return !telling_ && unsent_words_ == 0; });
}

void GroupCore::send_abort(const AbortMessage& message) {
  const auto payload = std::make_shared<const std::vector<std::byte>>(encode(message));
  for (int to = 0; to < size(); ++to) {
    if (to == rank_ || !hears(to, message.failure.has_value())) continue;
    {
      std::lock_guard lock(mutex_);
      ++unsent_words_;
    }
    // Whether it arrives is all the same to a rank that is leaving.
    mesh_.send(members_[to], abort_header(id_), *payload,
               [payload, self = shared_from_this()](std::exception_ptr) { self->end_word(); });
  }
}

void GroupCore::end_word() {
  std::lock_guard lock(mutex_);
  --unsent_words_;
  told_.notify_all();
}

/// Where not all ranks are connected, each rank that hears of a failure passes it on. Neighbours on
/// the group's ring are connected for it. A rank that connects with one that has left is told then.
bool GroupCore::hears(int to, bool of_failure) const {
  if (mesh_.complete() || mesh_.is_open(members_[to])) return true;
  return of_failure && net::near_on_ring(rank_, to, size());
}

std::string GroupCore::names(const std::set<int>& peers) const {
  std::string text;
  for (const int peer : peers) {
    text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", peer, mesh_.host_of(peer));
  }
  return text;
}

}  // namespace bimetal::comm
