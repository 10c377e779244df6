// The order of these matters to Windows.
// clang-format off
#include <winsock2.h>
#include <ws2tcpip.h>
#include <iphlpapi.h>
// clang-format on

#include <cstddef>
#include <vector>

#include "bimetal/base/unicode/utf8.h"
#include "bimetal/net/advertise.h"

namespace bimetal::net {
namespace {

/// The system's list, which may grow between asking for its size and asking for it.
std::vector<std::byte> adapter_list() {
  constexpr ULONG kFlags =
      GAA_FLAG_SKIP_ANYCAST | GAA_FLAG_SKIP_MULTICAST | GAA_FLAG_SKIP_DNS_SERVER;
  ULONG size = 16 << 10;
  for (;;) {
    std::vector<std::byte> memory(size);
    auto* const list = reinterpret_cast<IP_ADAPTER_ADDRESSES*>(memory.data());
    const ULONG error = GetAdaptersAddresses(AF_UNSPEC, kFlags, nullptr, list, &size);
    if (error == ERROR_NO_DATA) return {};
    if (error == ERROR_SUCCESS) return memory;
    if (error != ERROR_BUFFER_OVERFLOW) {
      throw windows_error("cannot list the network interfaces", error);
    }
  }
}

}  // namespace

std::vector<InterfaceAddress> own_addresses() {
  const std::vector<std::byte> memory = adapter_list();
  std::vector<InterfaceAddress> result;
  if (memory.empty()) return result;
  const auto* adapter = reinterpret_cast<const IP_ADAPTER_ADDRESSES*>(memory.data());
  for (; adapter; adapter = adapter->Next) {
    if (adapter->OperStatus != IfOperStatusUp) continue;
    for (const auto* entry = adapter->FirstUnicastAddress; entry; entry = entry->Next) {
      if (auto address = address_in(*entry->Address.lpSockaddr)) {
        result.push_back({utf8_of_wide(adapter->FriendlyName), *address});
      }
    }
  }
  return result;
}

}  // namespace bimetal::net
