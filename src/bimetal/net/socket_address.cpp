#include "bimetal/net/socket_address.h"

#include <cstring>

namespace bimetal::net {

std::optional<asio::ip::address> address_in(const sockaddr& from) {
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
