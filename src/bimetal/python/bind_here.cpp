// A library to preload (LD_PRELOAD) into programs that listen on all addresses of the machine and
// cannot be told otherwise, as Ray's: where BIMETAL_BIND_ADDRESS names an address, TCP sockets that
// would be bound to the wildcard are bound to that one. Everything else stays as it is. It needs
// nothing but the C library, since it is loaded into programs of any kind.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

using Bind = int (*)(int, const sockaddr*, socklen_t);

Bind system_bind() {
  static const auto found = reinterpret_cast<Bind>(::dlsym(RTLD_NEXT, "bind"));
  return found;
}

bool is_stream(int socket) {
  int type = 0;
  socklen_t length = sizeof(type);
  return ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

/// For a socket of IPv6, which knows 10.0.0.1 as ::ffff:10.0.0.1.
bool read_address(const char* text, in6_addr& address) {
  if (::inet_pton(AF_INET6, text, &address) == 1) return true;
  in_addr four{};
  if (::inet_pton(AF_INET, text, &four) != 1) return false;
  address = {};
  address.s6_addr[10] = address.s6_addr[11] = 0xff;
  std::memcpy(&address.s6_addr[12], &four, sizeof(four));
  return true;
}

int refuse() {
  errno = EADDRNOTAVAIL;
  return -1;
}

int bind_v4(int socket, sockaddr_in place, const char* here) {
  if (::inet_pton(AF_INET, here, &place.sin_addr) != 1) return refuse();
  return system_bind()(socket, reinterpret_cast<const sockaddr*>(&place), sizeof(place));
}

int bind_v6(int socket, sockaddr_in6 place, const char* here) {
  if (!read_address(here, place.sin6_addr)) return refuse();
  return system_bind()(socket, reinterpret_cast<const sockaddr*>(&place), sizeof(place));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int bind(int socket, const sockaddr* address,
                                                           socklen_t length) noexcept {
  const char* here = std::getenv("BIMETAL_BIND_ADDRESS");
  if (here != nullptr && address != nullptr && is_stream(socket)) {
    if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
      const auto& place = *reinterpret_cast<const sockaddr_in*>(address);
      if (place.sin_addr.s_addr == htonl(INADDR_ANY)) return bind_v4(socket, place, here);
    } else if (address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
      const auto& place = *reinterpret_cast<const sockaddr_in6*>(address);
      if (IN6_IS_ADDR_UNSPECIFIED(&place.sin6_addr)) return bind_v6(socket, place, here);
    }
  }
  return system_bind()(socket, address, length);
}
