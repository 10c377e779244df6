#pragma once
// The door at which a member hears from processes that want to be in the next epoch: a store of its
// own, which it serves as long as it lives. They leave word there, and show by a count that they
// still wait.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/membership/roll.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::membership {

/// One who has knocked and has no answer yet.
struct Visitor {
  std::int64_t number = 0;  ///< of the knock
  Knock knock = {};
  std::int64_t beats = -1;  ///< its count when last looked at
  /// Until when it counts as there. It has not shown that it waits before the first beat, unless
  /// the look before was a short while ago.
  Deadline there_until = Deadline::at({});

  bool there() const { return !there_until.expired(); }
};

/// Use from one thread.
class Door {
 public:
  /// `silence`: after which a visitor counts as gone. Errors: those of rendezvous::StoreServer.
  Door(const net::Endpoint& listen, const net::Token& token, std::chrono::milliseconds silence);

  net::Endpoint address() const { return address_; }
  rendezvous::Store& store() { return *store_; }
  const net::Token& token() const { return token_; }

  /// For those who wait: the meeting has begun, and goes on.
  void show_that_it_meets();

  /// Takes in who has come and who still waits.
  void look();
  /// Those who have no answer yet, there or not. The last knock of a process counts.
  const std::map<std::int64_t, Visitor>& visitors() const { return visitors_; }
  /// nullptr: that process is none of them.
  const Visitor* visitor(std::uint64_t id) const;

  void answer(std::int64_t number, const Answer& answer);
  /// Answers all that wait; tells them to look for the meeting anew.
  void answer_all(const Answer& answer);
  void send_elsewhere() { answer_all({.verdict = Verdict::elsewhere}); }

 private:
  void take(std::int64_t number, std::string_view text);

  rendezvous::StoreServer server_;
  net::Endpoint address_;
  net::Token token_;
  std::chrono::milliseconds silence_;
  std::unique_ptr<rendezvous::Store> store_;
  std::int64_t seen_ = 0;
  Deadline next_sign_ = Deadline::at({});
  Deadline looked_ = Deadline::at({});  ///< the last look is no longer ago than `silence_`
  bool fresh_ = false;  ///< a process seen for the first time has come since such a look
  std::map<std::int64_t, Deadline> unread_;  ///< those who have a number and have not said more yet
  std::map<std::int64_t, Visitor> visitors_;
  std::map<std::uint64_t, std::int64_t> numbers_;  ///< of their last knocks, by process
};

/// Waits at `store`, and returns the answer. Errors: PeerLost if the member is gone or silent;
/// Timeout if it has not met anybody for `timeout` (none: it need not); exceptions of `wait`, which
/// is called about ten times a second.
Answer knock_at(rendezvous::Store& store, const Knock& knock, std::chrono::milliseconds silence,
                std::optional<std::chrono::milliseconds> timeout,
                const std::function<void()>& wait);

/// "HOST:PORT,HOST:PORT…". Errors: those of net::parse_endpoint.
std::vector<net::Endpoint> doors_in(std::string_view text);

/// The address for this process's door, by its environment. The host is BIMETAL_ADDRESS, or else
/// the address on the way to `towards` (nobody: comm::address_for_meeting()); a process that
/// `comes_later`, to members that are there already, is not taken for a rank of one machine. The
/// port is BIMETAL_DOOR_PORT for the machine's first rank, the next ones behind it for those that
/// follow; 0, any, without that, and for newcomers, whose machine may have such ranks already.
/// Error(InvalidArgument) for a port that makes no sense.
net::Endpoint door_of_process(const std::optional<net::Endpoint>& towards, int local_rank,
                              bool comes_later);

/// The key under which a store shows who is in this epoch, once there is one.
inline constexpr const char* kRollKey = "door/roll";

/// Shows everybody at `store` who is in this epoch.
void show(rendezvous::Store& store, const Roll& roll);

/// A member's roll of its epoch; nothing if it has not been in one yet.
std::optional<Roll> roll_at(rendezvous::Store& store, Deadline deadline);

}  // namespace bimetal::membership
