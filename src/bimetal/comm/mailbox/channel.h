#pragma once
// The interface on which collective algorithms are written: messages between the ranks of one group
// within one call. The k-th message sent from a to b is the k-th that b receives from a.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/comm/group/flight_recorder.h"
#include "bimetal/comm/group/group_core.h"

namespace bimetal::comm {

/// For the one thread that runs the call. Every wait ends, by the call's deadline at the latest, in
/// an Error if the group fails.
class Channel {
 public:
  using Ticket = Transfers::Ticket;

  Channel(GroupCore& core, std::shared_ptr<Flight> flight);

  /// The same call among some ranks alone, this one included: they are counted in the given order
  /// there. Messages of both count together.
  Channel among(const std::vector<int>& ranks) const;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }

  /// The call, with its number.
  const Call& call() const noexcept { return flight_->call; }

  /// The rank `steps` to the right on the ring of ranks (to the left where negative).
  int neighbour(int steps) const noexcept { return (rank() + steps % size() + size()) % size(); }

  /// Tells the flight recorder and the log how the call is carried out. `name` must live for ever.
  void note_algorithm(const char* name) { core_.note_algorithm(*flight_, name); }

  /// Begins to receive a message of exactly this length; it is there after wait().
  Ticket receive(int from, std::span<std::byte> into) {
    return core_.receive(flight_, members_[from], into);
  }
  void wait(Ticket ticket) { flight_->transfers.wait_received(ticket); }

  /// The same for one part (parts.h) that nothing waits for by itself. It is combined with the
  /// contents of `into`, and sent on to rank `to` (-1: to none), as it arrives and without this
  /// thread. Messages sent on go in the order of these calls, after what send() has sent before:
  /// all receives that are sent on to one rank come from one other. Over at wait_all().
  void receive_part(int from, std::span<std::byte> into, Combine combine, int to = -1);

  /// Begins to send a message (in parts where it is long). `bytes` must stay as they are until
  /// wait_sent().
  void send(int to, std::span<const std::byte> bytes);
  /// The same as one part, at most kMaxPartBytes long.
  void send_part(int to, std::span<const std::byte> bytes) {
    core_.send(flight_, members_[to], next_part(to), bytes);
  }

  /// Memory for as long as the call takes, its failure included: memory under a receive or a send
  /// must not be freed by leaving the algorithm early.
  std::span<std::byte> scratch(std::size_t bytes);

  /// For a wait by other means than messages that takes long: throws if the group has failed; gives
  /// back a failure if `rank` has left the group.
  std::optional<Failure> still_waiting(int rank) {
    return core_.still_waiting(flight_, members_[rank]);
  }

  /// Until everything sent so far has left its memory.
  void wait_sent() { flight_->transfers.wait_sent(); }

  /// Waits until everything begun so far has ended, and everything that it has sent on.
  void wait_all() { flight_->transfers.wait_all(); }

 private:
  std::uint32_t next_part(int to) { return (*next_parts_)[members_[to]]++; }

  GroupCore& core_;
  std::shared_ptr<Flight> flight_;
  std::vector<int> members_;  // ranks of the group
  int rank_;
  std::shared_ptr<std::vector<std::uint32_t>> next_parts_;  // by rank of the group
};

}  // namespace bimetal::comm
