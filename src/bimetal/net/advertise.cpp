#include "bimetal/net/advertise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::net {
namespace {

// The names that container engines, hypervisors and network plug-ins give to interfaces on their
// host. Inside a container the same link is called eth0, and used.
constexpr std::array<std::string_view, 17> kContainerInterfaces = {
    "docker", "br-",   "veth",   "virbr", "vnet",    "cni",   "flannel",   "cali",    "cilium",
    "lxc",    "lxdbr", "podman", "vmnet", "vboxnet", "kube-", "vEthernet", "bridge10"};

bool is_for_containers(std::string_view interface) {
  return std::any_of(kContainerInterfaces.begin(), kContainerInterfaces.end(),
                     [&](std::string_view prefix) { return interface.starts_with(prefix); });
}

bool has_meaning_elsewhere(const asio::ip::address& address) {
  return !is_loopback(address.to_string()) && !address.is_unspecified() &&
         !address.is_multicast() && !(address.is_v6() && address.to_v6().is_link_local());
}

/// Whether the address is in 169.254.0.0/16. Machines without an address from elsewhere give
/// themselves one of these.
bool is_makeshift(const asio::ip::address& address) {
  return address.is_v4() && address.to_v4().to_uint() >> 16 == 0xa9fe;
}

/// "10.0.0.0/8"; an address alone is a prefix of all its bits.
struct Prefix {
  asio::ip::address address;
  std::size_t bits;

  bool contains(const asio::ip::address& other) const {
    if (address.is_v4() != other.is_v4()) return false;
    return address.is_v4() ? same(address.to_v4().to_bytes(), other.to_v4().to_bytes())
                           : same(address.to_v6().to_bytes(), other.to_v6().to_bytes());
  }

 private:
  template <typename Bytes>
  bool same(const Bytes& a, const Bytes& b) const {
    const std::size_t whole = bits / 8;
    if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(whole), b.begin())) {
      return false;
    }
    const int rest = 8 - static_cast<int>(bits % 8);
    return rest == 8 || a[whole] >> rest == b[whole] >> rest;
  }
};

/// Nothing where `text` does not begin with an address: it is a name then.
std::optional<Prefix> parse_prefix(std::string_view text) {
  const auto slash = text.find('/');
  std::error_code error;
  const auto address = asio::ip::make_address(std::string(text.substr(0, slash)), error);
  if (error) return std::nullopt;
  const std::size_t most = address.is_v4() ? 32 : 128;
  if (slash == std::string_view::npos) return Prefix{address, most};
  std::size_t bits = 0;
  const auto* const end = text.data() + text.size();
  const auto [stop, bad] = std::from_chars(text.data() + slash + 1, end, bits);
  if (bad != std::errc() || stop != end || bits > most) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("BIMETAL_INTERFACE: \"{}\" is no prefix; write for example 10.0.0.0/8 "
                            "or fd00::/8",
                            text));
  }
  return Prefix{address, bits};
}

std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    const auto comma = list.find(',');
    auto item = list.substr(0, comma);
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (!item.empty()) items.push_back(item);
  }
  return items;
}

void add(std::vector<std::string>& to, const asio::ip::address& address) {
  std::string text = address.to_string();
  if (std::find(to.begin(), to.end(), text) == to.end()) to.push_back(std::move(text));
}

std::vector<std::string> selected(std::string_view selection,
                                  std::span<const InterfaceAddress> own) {
  std::vector<std::string> result;
  for (const auto item : items_of(selection)) {
    const auto prefix = parse_prefix(item);
    for (const auto& [name, address] : own) {
      const bool fits = prefix ? prefix->contains(address) : name == item;
      if (fits && has_meaning_elsewhere(address)) add(result, address);
    }
  }
  if (!result.empty()) return result;
  std::string there;
  for (const auto& [name, address] : own) {
    if (!has_meaning_elsewhere(address)) continue;
    there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", name, address.to_string());
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_INTERFACE={} fits no address of this machine by which others "
                          "could reach it; there {}",
                          selection, there.empty() ? "is none" : "are " + there));
}

}  // namespace

std::string interfaces_from_environment() {
  const char* const text = std::getenv("BIMETAL_INTERFACE");
  return text ? text : "";
}

std::vector<std::string> addresses_to_advertise(std::string_view selection,
                                                std::string_view towards_store,
                                                std::span<const InterfaceAddress> own) {
  if (towards_store.empty()) return {"127.0.0.1"};
  if (is_loopback(towards_store)) return {std::string(towards_store)};
  std::vector<std::string> result;
  if (!items_of(selection).empty()) {
    result = selected(selection, own);
  } else {
    std::error_code no_number;
    const auto first = asio::ip::make_address(std::string(towards_store), no_number);
    if (no_number || has_meaning_elsewhere(first)) result.emplace_back(towards_store);
    for (const bool makeshift : {false, true}) {
      for (const auto& [name, address] : own) {
        if (!has_meaning_elsewhere(address) || is_for_containers(name)) continue;
        if (is_makeshift(address) == makeshift) add(result, address);
      }
    }
  }
  if (result.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("this machine reaches the store by its link-local address {} and has "
                            "no other by which the job's ranks could reach it; give its interface "
                            "an address",
                            towards_store));
  }
  if (result.size() > kMaxAdvertised) result.resize(kMaxAdvertised);
  return result;
}

}  // namespace bimetal::net
