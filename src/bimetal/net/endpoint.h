#pragma once
// HOST:PORT as people type it: "10.0.0.2:29500", "mac.local:29500", "[fd00::2]:29500".

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace bimetal::net {

/// Where something listens.
struct Endpoint {
  std::string host;        ///< name or address, without brackets
  std::uint16_t port = 0;  ///< 0 asks the system for a free port when listening

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// Throws Error(InvalidArgument) that names the fault in `text`.
Endpoint parse_endpoint(std::string_view text);

/// The inverse; IPv6 addresses get their brackets back.
std::string to_string(const Endpoint& endpoint);

/// Several addresses of one process: "10.0.0.2:29500, [fd00::2]:29500".
std::string to_string(std::span<const Endpoint> endpoints);

/// Whether `host` is "localhost" or an address of the loopback range (127.0.0.0/8, ::1).
bool is_loopback(std::string_view host);

// The address of this machine by which the others of a job can reach it.

/// The address from which this machine would send to `peer`; nothing is sent. Error(System) if the
/// name has no address or no network leads there.
std::string address_towards(const Endpoint& peer);

/// The address by which other machines reach a server that listens on `host`: `host` itself unless
/// that stands for every address ("0.0.0.0", "::"). Error(InvalidArgument) asks for an explicit
/// one where this machine has no network.
std::string reachable_address(const std::string& host);

}  // namespace bimetal::net
