#pragma once
// Forms a group of a job's members, again and again: members leave or are lost, newcomers come, and
// nobody's loss ends the job. docs/elastic.md tells what people see of it.
//
// Every member serves a small store, its door, and knows from the last epoch where the others' are.
// When an epoch ends, all go to the door of the first member that is there. That one waits until
// each of the others has come or is known to be gone, and tells those who are there their ranks. An
// epoch begins when all of its members have connected, so that no two can begin of which each has a
// majority of the last one's members.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/membership/door.h"
#include "bimetal/membership/roll.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace bimetal::membership {

class Meeting;

/// Whether a rank has failed because of another rank's end.
bool follows_from_a_loss(const Error& error);

/// For Options::keeper: any members that are left may go on.
inline constexpr const char* kEither = "either";

struct Options {
  std::string listen = "127.0.0.1";  ///< the address of this machine by which the others reach it
  std::uint16_t port = 0;            ///< of the door; 0: any
  net::Token token = {};
  std::string host = {};    ///< this machine's name
  std::string worker = {};  ///< its device
  std::string job = {};     ///< see train()
  /// Machine that decides where half of the members have lost the other half; empty: that of the
  /// first epoch's rank 0, or "either".
  std::string keeper = {};
  int least = 1;  ///< members that an epoch needs
  int most = 0;   ///< newcomers beyond that wait; 0: any number
  /// For a majority, or enough members, to be there.
  std::chrono::milliseconds patience{std::chrono::minutes(1)};
  /// For a member that is there to come: a step may take that long.
  std::chrono::milliseconds timeout{std::chrono::minutes(1)};
  /// The silence after which a member counts as gone.
  std::chrono::milliseconds silence{std::chrono::seconds(1)};
  comm::GroupOptions group = {};
  /// A store in which rank 0 shows who is in the epoch, too, as long as it is there: a launcher's.
  /// Nothing: the one that BIMETAL_BOARD names, in which each member does: its own machine's.
  std::optional<net::Endpoint> board = {};
  /// Called while join() and next() wait, at least ten times a second. It may throw.
  std::function<void()> wait = [] {};
};

/// The group of a new epoch, and how it differs from the last one that this member was in.
struct Change {
  comm::Group group;
  std::vector<Member> lost = {}, left = {}, came = {};
};

/// One process's place among the members. Use from one thread.
class Membership {
 public:
  /// Opens the door. Errors: those of rendezvous::StoreServer.
  explicit Membership(Options options);

  /// `first` is the job's first group. Collective. Error(InvalidArgument) for a keeper that is none
  /// of its machines.
  void found(comm::Group first);

  /// In place of found(), for a process that comes later: knocks at `doors`, one of which must be a
  /// member's, until it is in. Errors: what the members refuse it for; PeerLost if none is there.
  comm::Group join(std::vector<net::Endpoint> doors);

  /// The facts on the training that must be equal on all members; others are refused. Call it
  /// before join() and the first next().
  void train(std::string job) { options_.job = std::move(job); }
  /// Options::wait from now on.
  void wait_with(std::function<void()> wait) { options_.wait = std::move(wait); }

  /// Whether somebody waits who may come in: at rank 0's door, to which the others send them. Asks
  /// its own store at most fifty times a second.
  bool somebody_waits();

  /// The next epoch, once this member's group has ended: `loss` is why, or nothing where all have
  /// agreed to end it, but for the ranks `leaving`, which do not come. Each member calls it.
  /// Errors: PeerLost where no majority, or less than options.least, is there in time; the failure
  /// of a member that has called fail().
  Change next(const std::optional<Error>& loss, std::span<const int> leaving = {});

  /// The job has failed here: members that come to the next meeting are told so. Waits for them,
  /// but not for long. Does not throw.
  void fail(const Error& failure) noexcept;

  /// The job is done: newcomers who still wait at this door, or look at the board, are told so.
  /// Does not throw.
  void finish() noexcept;

  /// No further epoch begins for this member, and nobody is told of it.
  void end() noexcept { over_ = true; }
  /// Whether that is so, or next() has said why there can be none.
  bool over() const noexcept { return over_; }
  const Roll& roll() const noexcept { return roll_; }
  net::Endpoint door() const { return door_.address(); }

 private:
  struct Round;

  Knock knock() const;
  std::optional<Error> objection_to(const Knock& knock) const;
  comm::Group meet(Round& round);
  std::optional<comm::Group> attend(const Member& host, Round& round);
  bool are_enough(Meeting& meeting) const;
  std::optional<comm::Group> preside(Round& round);
  [[noreturn]] void give_up(const Error& why);
  void show_roll(const Roll& roll);
  void look_at_board();
  std::optional<Roll> roll_behind(const net::Endpoint& door) const;
  comm::Group connect(rendezvous::Store& store, int rank, const Roll& roll,
                      const std::string& prefix);
  Change change_from(const Roll& before, comm::Group group, std::span<const Member> left) const;

  Options options_;
  Member self_;
  Door door_;
  Roll roll_;
  std::optional<Error> failure_;
  Deadline next_look_ = Deadline::at({});
  bool waits_ = false, over_ = false, own_board_ = false;
  int meetings_ = 0;
};

}  // namespace bimetal::membership
