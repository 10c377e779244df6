#pragma once
// A group's state on one rank: its members, the calls in flight, and the one failure that ends them
// all. It has no thread of its own. The mesh, the timer and the group's executor call into it.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/group/flight_recorder.h"
#include "bimetal/comm/group/message_sender.h"
#include "bimetal/comm/mailbox/inbox.h"
#include "bimetal/comm/mailbox/mailbox.h"
#include "bimetal/net/mesh.h"

namespace bimetal::comm {

class Fabric;

/// Thread-safe. The fabric must outlive every call into it.
class GroupCore : public GroupListener, public std::enable_shared_from_this<GroupCore> {
 public:
  /// A call that takes longer than this tells its group so (a probe), by which ranks notice that
  /// they wait for each other in different calls, and which of them has made none.
  static constexpr std::chrono::milliseconds kProbeAfter{250};
  /// How long after a failure a peer may still hold this group's buffers before it is dropped.
  static constexpr std::chrono::milliseconds kGrace{250};
  /// How long a peer's Abort may take to arrive once nothing can be sent to it any more.
  static constexpr std::chrono::milliseconds kLastWords{100};
  /// How long a rank that cannot name the one to blame for a Timeout leaves it to one that can.
  static constexpr std::chrono::milliseconds kWayGiven{250};

  GroupCore(std::uint32_t id, std::vector<int> members, std::uint32_t epoch, Fabric& fabric);

  /// Joins the mailbox. Once, before anything else.
  void enter();

  std::uint32_t id() const noexcept { return id_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[rank]; }
  const std::vector<int>& members() const noexcept { return members_; }

  /// Long messages to these ranks of the group go through memory from now on.
  void share_memory_with(const std::vector<int>& ranks);

  /// Begins a call, numbering it if it is a collective, and watches its deadline. In a failed group
  /// the call is over already and nothing is to be done for it (its work is). Not to be called
  /// concurrently: the calls' order is the group's.
  std::shared_ptr<Flight> start(Call call, Deadline deadline);

  /// Ends a call that has nothing under way any more; its work takes `failure`.
  void finish(const std::shared_ptr<Flight>& flight, std::optional<Failure> failure);

  /// For the flight recorder and the log: the call's turn has come; how it is carried out.
  void note_start(const Flight& flight);
  void note_algorithm(const Flight& flight, const char* name);

  /// Posts a receive, or queues a send, of a call in flight. Ranks are the group's. Throws the
  /// group's failure.
  Transfers::Ticket receive(const std::shared_ptr<Flight>& flight, int from,
                            std::span<std::byte> into);
  /// Receives the first message of the call's tag, from any rank. The call's work knows the sender
  /// then.
  void receive_from_anybody(const std::shared_ptr<Flight>& flight, std::span<std::byte> into);
  /// How a message is handled when it has arrived, on the thread that brought it.
  struct Landing {
    Combine combine = {};    ///< in place of a copy
    int to = -1;             ///< the rank that it is sent on to, combined; -1: none
    std::uint32_t part = 0;  ///< its number among the messages to that rank
  };
  void receive(const std::shared_ptr<Flight>& flight, int from, std::span<std::byte> into,
               Landing landing);
  void send(const std::shared_ptr<Flight>& flight, int to, std::uint32_t part,
            std::span<const std::byte> payload);

  /// A call in flight waits for a rank by other means than transfers: throws the group's failure,
  /// gives back one if that rank has left. The note that it waits stays until the next one.
  std::optional<Failure> still_waiting(const std::shared_ptr<Flight>& flight, int rank);

  /// Begins and ends a collective that is done at once, in the calling thread: none while another
  /// is in flight, or in a failed group. It gets its number. If it turns out to take longer, it
  /// goes on as a flight of the rank's choice of deadline. The same order of calls as for start().
  bool start_at_once(Call& call);
  void finish_at_once(const Call& call);
  std::shared_ptr<Flight> take_off(Call call, Deadline deadline);

  /// Ends every call in flight and every later one. The first failure counts.
  void fail(const Failure& failure, bool tell_others);
  std::optional<Failure> failure() const;

  /// Until the words on the failure have left this process, or cannot.
  void wait_told(Deadline deadline);

  /// False if calls are still in flight at `deadline`.
  bool wait_idle(Deadline deadline);

  /// Lets no further call begin: it fails with Aborted. Returns whether the group had failed.
  bool end();

  /// Leaves the mailbox, after saying farewell to the members if asked. Nothing may be in flight.
  void leave(bool farewell);

  void on_failure(const Failure& failure, bool tell_others) override { fail(failure, tell_others); }
  void on_sign(int peer, std::uint64_t sequence) override;
  void on_ring(int peer, std::uint32_t word) override { messages_.on_ring(peer, word); }

 private:
  using FlightPtr = std::shared_ptr<Flight>;

  void send_on(const FlightPtr& flight, int to, std::uint32_t part,
               std::span<const std::byte> payload);
  void refuse(const FlightPtr& flight, const Failure& failure);
  void note_end(const Flight& flight, const std::optional<Failure>& failure);
  void on_unsent(const FlightPtr& flight, int peer, const std::exception_ptr& error);
  void watch(const FlightPtr& flight);
  void on_alarm(const FlightPtr& flight);
  void send_signs(const FlightPtr& flight);
  void send_abort(const AbortMessage& message);
  void end_word();
  bool hears(int to, bool of_failure) const;
  void give_up();
  void drop_stuck_peers();
  const Flight& first_stuck(const Flight& flight) const;
  std::set<int> silent_in(const Flight& flight) const;
  Failure timed_out(const Flight& flight) const;
  std::string names(const std::set<int>& peers) const;

  const std::uint32_t id_;
  const std::vector<int> members_;
  const int rank_;
  const std::uint32_t epoch_;
  net::Mesh& mesh_;
  MessageSender messages_;
  Mailbox& mailbox_;
  Timer& timer_;
  FlightRecorder& recorder_;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::condition_variable told_;
  std::uint64_t next_sequence_ = 0;
  std::list<FlightPtr> flights_;  // in the order of the calls
  std::optional<Failure> failure_;
  bool telling_ = false;  // the failure is on its way into the mesh's queues
  int unsent_words_ = 0;  // of the failure or the farewell, to this many members
};

}  // namespace bimetal::comm
