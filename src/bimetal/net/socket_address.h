#pragma once
// Addresses in the form of the system's calls.

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>  // and with it the system's own headers of sockets
#include <cstring>
#include <optional>

namespace bimetal::net {

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
