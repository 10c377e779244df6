#include "bimetal/plan/mesh/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::plan {
namespace {

[[noreturn]] void refuse(const std::string& flaw) {
  throw Error(ErrorCode::InvalidArgument, flaw);
}

double transfer(const LinkSpeed& link, double bytes) {
  return link.latency_s + bytes / link.bytes_per_s;
}

double tree(const LinkSpeed& link, double members, double bytes) {
  return 2 * std::ceil(std::log2(members)) * transfer(link, bytes);
}

LinkSpeed slower_of(const LinkSpeed& a, const LinkSpeed& b) {
  return {std::max(a.latency_s, b.latency_s), std::min(a.bytes_per_s, b.bytes_per_s)};
}

}  // namespace

Cluster::Cluster(std::vector<MeshDevice> devices, Network network)
    : devices_(std::move(devices)), network_(std::move(network)) {
  if (devices_.empty()) refuse("a cluster needs at least one device");
  for (const auto& device : devices_) {
    if (device.host >= network_.hosts.size()) {
      refuse(fmt::format("device {} is of a host that is not there", device.name));
    }
    if (!(device.memory_bytes > 0) || !(device.slower > 0)) {
      refuse(fmt::format("device {} needs memory and speed above 0", device.name));
    }
  }
  const auto need = devices_.size() * devices_.size();
  if (!network_.pairs.empty() && network_.pairs.size() != need) {
    refuse(fmt::format("{} pairs of links for {} devices", network_.pairs.size(), devices_.size()));
  }
  if (devices_.size() == 1) return;
  for (std::size_t h = 0; network_.pairs.empty() && h < network_.hosts.size(); ++h) {
    const auto& host = network_.hosts[h];
    const auto here = std::ranges::count(devices_, h, &MeshDevice::host);
    const bool inside = here < 2 || host.inside.bytes_per_s > 0;
    const bool outside =
        here == static_cast<std::ptrdiff_t>(devices_.size()) || host.uplink.bytes_per_s > 0;
    if (!inside || !outside) refuse(fmt::format("host {} needs the rates of its links", host.name));
  }
}

const HostLinks& Cluster::host_of(int device) const {
  return network_.hosts[this->device(device).host];
}

bool Cluster::same_host(int a, int b) const {
  return device(a).host == device(b).host;
}

LinkSpeed Cluster::link(int from, int to) const {
  if (!network_.pairs.empty()) {
    return network_
        .pairs[static_cast<std::size_t>(from) * devices_.size() + static_cast<std::size_t>(to)];
  }
  if (same_host(from, to)) return host_of(from).inside;
  return slower_of(host_of(from).uplink, host_of(to).uplink);
}

double Cluster::send_seconds(std::span<const int> from, std::span<const int> to,
                             std::span<const double> bytes) const {
  double slowest = 0;
  std::map<std::size_t, double> leaves, comes;  // by host
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] == to[i]) continue;
    slowest = std::max(slowest, transfer(link(from[i], to[i]), bytes[i]));
    if (!network_.pairs.empty() || same_host(from[i], to[i])) continue;
    leaves[device(from[i]).host] += bytes[i];
    comes[device(to[i]).host] += bytes[i];
  }
  for (const auto* const side : {&leaves, &comes}) {
    for (const auto& [host, sum] : *side) {
      slowest = std::max(slowest, transfer(network_.hosts[host].uplink, sum));
    }
  }
  return slowest;
}

double Cluster::all_reduce_seconds(std::span<const int> members, double bytes) const {
  const auto count = static_cast<double>(members.size());
  if (members.size() < 2) return 0;
  if (!network_.pairs.empty()) {
    LinkSpeed slowest = link(members[0], members[1]);
    for (const int a : members) {
      for (const int b : members) {
        if (a != b) slowest = slower_of(slowest, link(a, b));
      }
    }
    return ring_seconds(bytes, count, slowest);
  }
  std::map<std::size_t, int> here;  // members of each host
  for (const int member : members) ++here[device(member).host];
  double inside = 0;
  LinkSpeed between{0, std::numeric_limits<double>::infinity()};
  for (const auto& [host, devices] : here) {
    inside = std::max(inside, ring_seconds(bytes, devices, network_.hosts[host].inside));
    between = slower_of(between, network_.hosts[host].uplink);
  }
  if (here.size() < 2) return inside;
  const auto hosts = static_cast<double>(here.size());
  return inside + std::min(ring_seconds(bytes, hosts, between), tree(between, hosts, bytes));
}

}  // namespace bimetal::plan
