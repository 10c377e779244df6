#pragma once
// The guest's side of pairing: finds the host, shows that it knows the code or the key that both
// remember, and gets the job's token.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/pairing/machines.h"
#include "bimetal/net/pairing/message.h"

namespace bimetal::net::pairing {

struct GuestOptions {
  std::vector<Endpoint> addresses;  ///< of the host, the one to prefer first
  std::string place;                ///< the host, as the user calls it: for messages
  Machines machines;
  std::string release;                ///< of this Bimetal
  Deadline deadline;                  ///< until the host has to be found
  std::optional<std::string> code{};  ///< where the user has given one already
  /// Asks the user for the code that `host` shows now; `complaint` says what was wrong with the one
  /// before, if there was one. Nothing: the user gives none. May be empty.
  std::function<std::optional<std::string>(const std::string& host, const std::string& complaint)>
      ask_code{};
  std::function<void(const std::string& note)> say{};
};

struct Admission {
  Grant grant;
  Endpoint store;           ///< the job's
  std::string host;         ///< its machine's name
  bool remembered = false;  ///< no code was needed
};

/// Nothing where a Bimetal listens there that shares no job: it wants a token, or none. Blocks
/// while the user is asked. Errors: Timeout where nobody answers; ProtocolMismatch for another
/// version or something else's port; Unauthorized, with what to do, for a code or key that is
/// refused, and where the host cannot prove that it knows it.
std::optional<Admission> join(const GuestOptions& options);

}  // namespace bimetal::net::pairing
