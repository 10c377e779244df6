#pragma once
// The members of a job, and the messages by which processes agree on them: docs/elastic.md.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::membership {

/// One process of a job. Ranks change from epoch to epoch; a member's id does not.
struct Member {
  std::uint64_t id = 0;
  std::string host;    ///< its machine's name
  std::string name;    ///< for people: "rank 2 (pc2, cuda:0)"
  net::Endpoint door;  ///< where its store listens
  bool operator==(const Member&) const = default;
};

/// Those who have agreed on an epoch, by rank. None: the job is done.
struct Roll {
  std::uint32_t epoch = 0;
  std::vector<Member> members;
  /// The machine that decides where half of them have lost the other half; empty: each half may go
  /// on.
  std::string keeper;

  /// nullptr: it is not among them.
  const Member* find(std::uint64_t id) const;
  bool operator==(const Roll&) const = default;
};

/// The message that a process leaves at another one's door when it wants to be in the next epoch.
struct Knock {
  Member who;
  std::vector<std::uint64_t> lost = {};  ///< members that it has found missing
  std::string release = {};              ///< of its Bimetal
  std::string job = {};                  ///< the facts on its training: equal on all members
  std::optional<Error> failure = {};     ///< it has failed, and the job with it
};

enum class Verdict : std::uint8_t {
  member = 0,     ///< it is in: connect at this store, as `rank` of `roll`
  elsewhere = 1,  ///< another member leads the meeting: look again
  refused = 2,    ///< not this process, for `error`; the job goes on
  failed = 3,     ///< the job has failed: `error`
};

struct Answer {
  Verdict verdict = Verdict::elsewhere;
  int rank = -1;
  Roll roll = {};
  std::string prefix = {};  ///< of the meeting's keys in the store
  std::optional<Error> error = {};
};

// As bytes. Each decode throws Error(CorruptData) for nonsense.

std::string encode_roll(const Roll& roll);
Roll decode_roll(std::string_view bytes);
std::string encode_knock(const Knock& knock);
Knock decode_knock(std::string_view bytes);
std::string encode_answer(const Answer& answer);
Answer decode_answer(std::string_view bytes);

}  // namespace bimetal::membership
