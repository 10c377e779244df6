#pragma once
// Chooses the addresses on which a rank listens and which it tells the others.
//
// This machine's network interfaces, as the operating system lists them. One file per system.
//
// Addresses in the form of the system's calls.

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>  // and with it the system's own headers of sockets
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::net {

struct InterfaceAddress {
  std::string
      name;  ///< of the interface: "eth0", "en0"; on Windows the adapter's name, as "Ethernet 2"
  asio::ip::address address;
};

/// Addresses of the interfaces that are up, loopback included, in the system's order.
/// Error(System).
std::vector<InterfaceAddress> own_addresses();

/// More are of no use: they only make a rank that cannot be reached harder to notice.
inline constexpr std::size_t kMaxAdvertised = 16;

/// BIMETAL_INTERFACE, or empty: which interfaces to use, as names ("eth0,en0"), addresses or
/// prefixes ("10.0.0.2", "192.168.0.0/16,fd00::/8"), the one to prefer first.
std::string interfaces_from_environment();

/// The addresses to listen on and to advertise, at least one, the one to prefer first.
///
/// `towards_store` is this rank's address on the path to the store. If that is loopback (or empty),
/// so is the job: loopback alone is used, whatever is selected. Otherwise that address comes first,
/// because an address that reaches the store most likely reaches its ranks, and the other
/// interfaces' addresses follow. Never advertised are loopback, link-local IPv6 addresses, whose
/// meaning differs between machines, and interfaces made for containers and virtual machines
/// (docker0, br-…, veth…, virbr…, cni… and their like), whose addresses other hosts have, too.
///
/// `selection` as in interfaces_from_environment() replaces all but the rules on loopback and
/// link-local addresses. Error(InvalidArgument) names the interfaces if it fits none or is not
/// well-formed.
std::vector<std::string> addresses_to_advertise(std::string_view selection,
                                                std::string_view towards_store,
                                                std::span<const InterfaceAddress> own);

/// The IP address in `from`, which is as long as its family says; none of any other family.
inline std::optional<asio::ip::address> address_in(const sockaddr& from) {
  if (from.sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &from, sizeof(v4));
    return asio::ip::address_v4(ntohl(v4.sin_addr.s_addr));
  }
  if (from.sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &from, sizeof(v6));
    asio::ip::address_v6::bytes_type bytes;
    std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
    return asio::ip::address_v6(bytes, v6.sin6_scope_id);
  }
  return std::nullopt;
}

}  // namespace bimetal::net
