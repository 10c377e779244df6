#pragma once
// The host's side of pairing: listens for machines that want to join, shows codes, and hands the
// job's token to whom it lets in. Made for a port that strangers can reach: connections are
// limited in number, length and time, and nothing that a stranger says is believed or repeated.
//
// The guest's side of pairing: finds the host, shows that it knows the code or the key that both
// remember, and gets the job's token.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/pairing/code.h"
#include "bimetal/net/pairing/machines.h"
#include "bimetal/net/pairing/message.h"

namespace bimetal::net::pairing {

struct HostOptions {
  Endpoint listen;
  Grant grant;
  Machines machines;
  std::string release;  ///< of this Bimetal
  // News for the user. Called on the host's thread.
  std::function<void(const std::string& code, const std::string& asked_from)> show_code;
  std::function<void(const std::string& note)> say;
  std::function<CodeIssuer::Clock::time_point()> now = CodeIssuer::Clock::now;
};

class Host {
 public:
  /// Errors: System for a port in use, which names it.
  explicit Host(HostOptions options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// With the real port.
  Endpoint endpoint() const;
  /// Good from now on for two minutes.
  const std::string& first_code() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct GuestOptions {
  std::vector<Endpoint> addresses;  ///< of the host, the one to prefer first
  std::string place;                ///< the host, as the user calls it: for messages
  Machines machines;
  std::string release;                ///< of this Bimetal
  Deadline deadline;                  ///< until the host has to be found
  std::optional<std::string> code{};  ///< where the user has given one already
  /// Asks the user for the code that `host` shows now; `complaint` tells the fault of the one
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
