#include <ifaddrs.h>
#include <net/if.h>

#include <cerrno>
#include <memory>

#include "bimetal/base/error.h"
#include "bimetal/net/advertise.h"

namespace bimetal::net {

std::vector<InterfaceAddress> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw system_error("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    // IFF_RUNNING is not asked for: it comes some time after an interface works.
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) continue;
    if (auto address = address_in(*entry->ifa_addr)) result.push_back({entry->ifa_name, *address});
  }
  return result;
}

}  // namespace bimetal::net
