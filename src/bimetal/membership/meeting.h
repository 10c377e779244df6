#pragma once
// The meeting at one member's door that decides who is in the next epoch. Private to this folder.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/membership/door.h"
#include "bimetal/membership/membership.h"
#include "bimetal/membership/roll.h"

namespace bimetal::membership {

/// One member's way to the next epoch.
struct Membership::Round {
  std::set<std::uint64_t> lost = {};      ///< members that it has found missing
  std::set<std::uint64_t> given_up = {};  ///< members that were there, and never came to a meeting
  Deadline until;                         ///< for enough of them to be there
  bool is_short = false;                  ///< each has come or is gone, and those are not enough
  std::function<void()> wait;             ///< called while it waits; may throw
};

/// The objection to a process that wants to come in.
using Objection = std::function<std::optional<Error>(const Knock& knock)>;

/// Those who wait at `door` and are not in `roll`. Processes with an objection are refused.
std::vector<Member> newcomers_at(Door& door, const Roll& roll, const Objection& objection);

/// As the member sees it whose door it is. Use from one thread.
class Meeting {
 public:
  enum class State {
    waiting,    ///< for members that are there and have not come yet
    settled,    ///< each member of the last epoch has come or is gone
    elsewhere,  ///< a member before this one is there, or knows of a newer epoch
  };

  /// `door` must outlive it.
  Meeting(Door& door, const Roll& roll, const Member& self, std::chrono::milliseconds silence,
          std::chrono::milliseconds timeout);

  void suspect(const std::set<std::uint64_t>& lost) { suspected_.insert(lost.begin(), lost.end()); }
  void give_up(const std::set<std::uint64_t>& members) {
    given_up_ = members;
    gone_ = members;
  }

  /// Takes in who has come, and looks after those who have not.
  State look();

  /// Those who were gone may be back: a cut network heals.
  void look_again() { gone_ = given_up_; }

  // Once it is settled:
  /// The failure of a member that has come.
  std::optional<Error> failure() const;
  /// Whether those who have come may go on without the others.
  bool has_majority() const;
  /// Lets in newcomers that nothing is said against, until there are `most` (0: any number).
  void admit(const Objection& objection, int most);
  int size() const { return static_cast<int>(members().size()); }
  /// Tells everybody the new epoch, and returns it.
  Roll decide(const std::string& prefix);
  int rank() const { return rank_; }

  const std::optional<Roll>& newer() const { return newer_; }
  /// Why no epoch can begin.
  Error shortage(int least) const;

 private:
  bool has_come(const Member& member) const;
  const Visitor* visitor(std::uint64_t id) const;
  bool look_after(const Member& member, bool before_this);
  std::vector<Member> members() const;

  Door& door_;
  Roll roll_;
  Member self_;
  std::chrono::milliseconds silence_, timeout_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::set<std::uint64_t> suspected_, gone_, given_up_;
  std::map<std::uint64_t, Deadline> next_look_;
  std::optional<Roll> newer_;
  bool elsewhere_ = false;
  std::vector<Member> newcomers_;
  int rank_ = 0;
};

}  // namespace bimetal::membership
