#pragma once
// Can the ranks meet? Found out before any of them starts, so that a firewall is one clear message
// and not a job that waits.

#include <chrono>
#include <memory>

#include "bimetal/net/endpoint.h"

namespace bimetal::launch {

/// Holds a port of this host, so that the others can try to reach it, until destroyed. Nothing is
/// ever read from a client or written to it: only the system answers.
class HeldPort {
 public:
  /// `place` is an address of this host; port 0: a free one. Error(System) names the address if it
  /// is no address of this host, and the port if it is in use.
  explicit HeldPort(const net::Endpoint& place);
  ~HeldPort();
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  std::uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Connects to a held port and hangs up. Errors: Timeout or System with the address, the port, this
/// host's name for itself, and advice.
void require_reachable(const net::Endpoint& place, std::chrono::milliseconds patience);

/// Whether `host` (a name or address) is this machine: its own name, loopback, or an address of one
/// of its interfaces. False for a name that cannot be looked up.
bool is_this_machine(const std::string& host);

}  // namespace bimetal::launch
