#pragma once
// This machine's network interfaces, as the operating system lists them. One file per system.

#include <asio/ip/address.hpp>
#include <string>
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

}  // namespace bimetal::net
