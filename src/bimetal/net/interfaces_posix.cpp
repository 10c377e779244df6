#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/net/interfaces.h"

namespace bimetal::net {
namespace {

std::optional<asio::ip::address> read(const sockaddr& from) {
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

}  // namespace

std::vector<InterfaceAddress> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw system_error("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    // IFF_RUNNING is not asked for: it comes some time after an interface works.
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) continue;
    if (auto address = read(*entry->ifa_addr)) result.push_back({entry->ifa_name, *address});
  }
  return result;
}

}  // namespace bimetal::net
