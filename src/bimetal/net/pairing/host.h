#pragma once
// The host's side of pairing: listens for machines that want to join, shows codes, and hands the
// job's token to whom it lets in. Made for a port that strangers can reach: connections are
// limited in number, length and time, and nothing that a stranger says is believed or repeated.

#include <functional>
#include <memory>
#include <string>

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
  // What the user is to know. Called on the host's thread.
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

}  // namespace bimetal::net::pairing
