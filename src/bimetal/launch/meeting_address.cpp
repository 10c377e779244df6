#include "bimetal/launch/meeting_address.h"

#include <algorithm>

#include "bimetal/net/own_address.h"

namespace bimetal::launch {
namespace {

/// Any would do: nothing is sent.
constexpr std::uint16_t kPortOfSsh = 22;

std::string address_of_host(const MeetingHost& host) {
  return host.address.empty() ? host.name : host.address;
}

}  // namespace

std::string meeting_address(const std::vector<MeetingHost>& hosts) {
  const auto elsewhere =
      std::find_if(hosts.begin(), hosts.end(), [](const auto& host) { return !host.here; });
  if (elsewhere == hosts.end()) return "127.0.0.1";
  if (!hosts.front().here) return address_of_host(hosts.front());
  return net::address_towards({address_of_host(*elsewhere), kPortOfSsh});
}

}  // namespace bimetal::launch
