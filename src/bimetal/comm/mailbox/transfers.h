#pragma once
// The operations of one call that are in progress with the mesh: posted receives and queued sends.
// Meanwhile the call's buffers belong to the mesh.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "bimetal/comm/failure.h"

namespace bimetal::comm {

/// Thread-safe.
class Transfers {
 public:
  using Ticket = std::size_t;  ///< names one receive

  /// Throw the failure given to fail(), and then begin nothing.
  Ticket begin_receive(int peer) { return begin_receive(std::vector<int>{peer}); }
  /// From the one of them that sends first.
  Ticket begin_receive(std::vector<int> peers);
  void begin_send(int peer);

  /// It is this peer that has sent. Nothing where the receive has ended.
  void receive_from(Ticket ticket, int peer);

  void end_receive(Ticket ticket);
  void end_send(int peer);

  /// Makes every wait, now and later, throw `failure`, but for wait_idle(). The first one counts.
  void fail(const Failure& failure);
  std::optional<Failure> failure() const;

  /// Until the receive has ended, every send begun so far has, or both have for all.
  void wait_received(Ticket ticket);
  void wait_sent();
  void wait_all();

  /// Until nothing is under way, after success or failure. Does not throw.
  void wait_idle();

  /// Runs `action` once nothing is under way: now, or on the thread that ends the last transfer.
  /// Nothing may begin afterwards.
  void when_idle(std::function<void()> action);

  /// Notes that the call waits for `peer` by other means than a transfer, until it says otherwise
  /// or waits for a transfer.
  void await(std::optional<int> peer);

  /// Peers (world ranks) with which something is under way, or that are awaited.
  std::set<int> peers() const;

 private:
  struct Receive {
    std::vector<int> peers;
    bool ended = false;
  };

  bool idle() const { return under_way_.empty(); }
  template <typename Condition>
  void wait_eagerly(Condition condition);
  void leave(int peer);
  void end_one(std::unique_lock<std::mutex>& lock);
  void throw_if_failed() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int eager_waiters_ = 0;  ///< those that wait for less than everything
  std::deque<Receive> receives_;
  std::size_t sends_ = 0;
  std::optional<int> awaited_;
  std::map<int, std::size_t> under_way_;  // peer → number of transfers
  std::optional<Failure> failure_;
  std::function<void()> when_idle_;
};

}  // namespace bimetal::comm
