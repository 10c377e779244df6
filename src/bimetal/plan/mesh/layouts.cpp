#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "bimetal/plan/mesh/mesh_search.h"

namespace bimetal::plan {
namespace {

constexpr std::size_t kEveryCount = 16;
constexpr std::size_t kMostStages = 32;
constexpr std::size_t kStageCounts[] = {2, 3, 4, 6, 8, 12, 16, 24, 32};

using DeviceKind = std::tuple<std::size_t, double, double, double, double>;

DeviceKind kind_of(const Cluster& cluster, int index) {
  const auto& device = cluster.device(index);
  const auto& host = cluster.host_of(index);
  return {device.facts, device.slower, device.memory_bytes, host.inside.bytes_per_s,
          host.uplink.bytes_per_s};
}

class Finder {
 public:
  Finder(const Cluster& cluster, std::size_t units) : cluster_(cluster), units_(units) {
    for (int d = 0; d < cluster.size(); ++d) {
      kinds_.push_back(static_cast<int>(
          numbers_.emplace(kind_of(cluster, d), static_cast<int>(numbers_.size())).first->second));
    }
  }

  void every_order(std::vector<int>& chosen, const std::vector<int>& all) {
    if (chosen.size() >= 2) {
      add(one_each(chosen));
      boxes_of(chosen);
      for (auto& parts : parts_of(chosen, units_)) add(std::move(parts));
    }
    for (const int device : all) {
      if (std::ranges::find(chosen, device) != chosen.end()) continue;
      chosen.push_back(device);
      every_order(chosen, all);
      chosen.pop_back();
    }
  }

  /// One device in each stage, and every box, either way.
  void in_order(const std::vector<int>& devices) {
    if (devices.size() <= kMostStages) add(one_each(devices));
    boxes_of(devices);
  }

  void boxes_of(const std::vector<int>& devices) {
    for (const auto stages : kStageCounts) {
      const auto replicas = devices.size() / stages;
      if (replicas < 2) break;
      Layout alike(stages), across(stages);
      for (std::size_t i = 0; i < stages * replicas; ++i) {
        alike[i / replicas].push_back(devices[i]);
        across[i % stages].push_back(devices[i]);
      }
      add(std::move(alike));
      add(std::move(across));
    }
  }

  void groups_as_stages(const std::vector<int>& devices, bool by_host) {
    std::map<std::size_t, std::vector<int>> groups;
    for (const int device : devices) {
      groups[by_host ? cluster_.device(device).host
                     : static_cast<std::size_t>(kinds_[static_cast<std::size_t>(device)])]
          .push_back(device);
    }
    if (groups.size() < 2 || groups.size() > kMostStages) return;
    Layout layout;
    for (auto& [key, group] : groups) layout.push_back(std::move(group));
    Layout turned(layout.rbegin(), layout.rend());
    add(std::move(layout));
    add(std::move(turned));
  }

  std::vector<Layout> take() { return std::move(found_); }

 private:
  static Layout one_each(const std::vector<int>& devices) {
    Layout layout;
    for (const int device : devices) layout.push_back({device});
    return layout;
  }

  /// Alike: the same kinds of devices in the same places, and the same pairs of one host.
  void add(Layout layout) {
    if (layout.size() > units_ || layout.size() < 2) return;
    // Which replica is the first is no matter where each stage has its own number.
    if (!is_box(cluster_, layout)) {
      for (auto& stage : layout) std::ranges::sort(stage);
    }
    std::vector<int> key;
    std::map<std::size_t, int> hosts;
    for (const auto& stage : layout) {
      key.push_back(-1);
      for (const int device : stage) {
        key.push_back(kinds_[static_cast<std::size_t>(device)]);
        const auto host = cluster_.device(device).host;
        key.push_back(hosts.emplace(host, static_cast<int>(hosts.size())).first->second);
      }
    }
    if (seen_.insert(std::move(key)).second) found_.push_back(std::move(layout));
  }

  const Cluster& cluster_;
  const std::size_t units_;
  std::map<DeviceKind, int> numbers_;
  std::vector<int> kinds_;
  std::set<std::vector<int>> seen_;
  std::vector<Layout> found_;
};

std::vector<std::vector<int>> orders_of(const Cluster& cluster, std::vector<int> devices,
                                        bool many) {
  std::vector<std::vector<int>> orders = {devices};
  const auto by_memory = [&](int d) { return -cluster.device(d).memory_bytes; };
  const auto by_host = [&](int d) { return cluster.device(d).host; };
  if (many) {
    std::ranges::stable_sort(devices, {}, by_host);
    orders.push_back(devices);
    return orders;
  }
  std::ranges::stable_sort(devices, {}, by_memory);
  orders.push_back(devices);
  devices = orders.front();
  std::ranges::stable_sort(devices, {}, by_host);
  orders.push_back(devices);
  for (std::size_t i = 0; i < 3; ++i) {
    orders.emplace_back(orders[i].rbegin(), orders[i].rend());
  }
  return orders;
}

/// `groups` and each set of groups of so many of the devices that are `left`.
void every_grouping(Groups& groups, const std::vector<int>& left, std::size_t tensor,
                    std::vector<Groups>& found) {
  if (left.size() < tensor) {
    if (!groups.empty()) found.push_back(groups);
    return;
  }
  // A bit for each device behind the first: whether it is in the first's group.
  const std::vector<int> behind(left.begin() + 1, left.end());
  every_grouping(groups, behind, tensor, found);
  for (unsigned set = 0; set < 1u << behind.size(); ++set) {
    if (static_cast<std::size_t>(std::popcount(set)) + 1 != tensor) continue;
    std::vector<int> group = {left.front()}, others;
    for (std::size_t i = 0; i < behind.size(); ++i) {
      (set >> i & 1 ? group : others).push_back(behind[i]);
    }
    groups.push_back(std::move(group));
    every_grouping(groups, others, tensor, found);
    groups.pop_back();
  }
}

/// One after the other; left-over devices are in no group.
void add_groups(const std::vector<int>& devices, std::size_t tensor, Groups& groups) {
  for (std::size_t i = 0; i + tensor <= devices.size(); i += tensor) {
    const auto first = devices.begin() + static_cast<std::ptrdiff_t>(i);
    groups.emplace_back(first, first + static_cast<std::ptrdiff_t>(tensor));
  }
}

/// As many groups as leave a device over, from all hosts and from the fastest host alone.
std::vector<Groups> groups_of_hosts(const std::vector<int>& devices, const Cluster& cluster,
                                    std::size_t parts) {
  std::vector<std::vector<int>> hosts;
  for (const int device : devices) {
    const auto host = std::ranges::find_if(
        hosts, [&](const auto& known) { return cluster.same_host(known.front(), device); });
    (host == hosts.end() ? hosts.emplace_back() : *host).push_back(device);
  }
  Groups of_all, of_fastest;
  for (const auto& of_host : hosts) {
    add_groups(of_host, parts, of_all);
    if (of_fastest.empty()) of_fastest = of_all;
  }
  for (auto* const groups : {&of_all, &of_fastest}) {
    if (groups->size() * parts == devices.size()) groups->pop_back();
  }
  return {std::move(of_all), std::move(of_fastest)};
}

/// The same for ways that are alike: which kinds of devices are in a group, in hosts of which
/// kinds.
using Likeness = std::multiset<std::multiset<std::pair<DeviceKind, std::multiset<DeviceKind>>>>;

Likeness likeness(const Cluster& cluster, const Groups& groups) {
  std::map<std::size_t, std::multiset<DeviceKind>> hosts;
  for (int d = 0; d < cluster.size(); ++d) {
    hosts[cluster.device(d).host].insert(kind_of(cluster, d));
  }
  Likeness all;
  for (const auto& group : groups) {
    Likeness::value_type members;
    for (const int device : group) {
      members.emplace(kind_of(cluster, device), hosts[cluster.device(device).host]);
    }
    all.insert(std::move(members));
  }
  return all;
}

}  // namespace

std::vector<Groups> groupings_of(const Cluster& cluster, const std::vector<int>& fastest_first,
                                 std::size_t tensor) {
  std::vector<Groups> found;
  if (cluster.size() <= kSearchedThrough) {
    Groups groups;
    every_grouping(groups, fastest_first, tensor, found);
    return found;
  }
  std::map<std::size_t, std::vector<int>> hosts;
  std::map<std::pair<std::size_t, DeviceKind>, std::vector<int>> alike;
  for (const int device : fastest_first) {
    const auto host = cluster.device(device).host;
    hosts[host].push_back(device);
    alike[{host, kind_of(cluster, device)}].push_back(device);
  }
  Groups of_kinds, of_hosts, anywhere;
  for (const auto& [kind, devices] : alike) add_groups(devices, tensor, of_kinds);
  for (const auto& [host, devices] : hosts) add_groups(devices, tensor, of_hosts);
  if (fastest_first.size() <= kEveryCount) add_groups(fastest_first, tensor, anywhere);
  for (auto* const groups : {&of_kinds, &of_hosts, &anywhere}) {
    if (groups->empty() || std::ranges::find(found, *groups) != found.end()) continue;
    found.push_back(std::move(*groups));
  }
  return found;
}

std::vector<GroupsBeside> groupings_beside(const Cluster& cluster,
                                           const std::vector<int>& fastest_first,
                                           std::size_t parts) {
  std::vector<Groups> all;
  if (cluster.size() <= kSearchedThrough) {
    Groups groups;
    every_grouping(groups, fastest_first, parts, all);
  } else {
    all = groups_of_hosts(fastest_first, cluster, parts);
  }
  std::vector<GroupsBeside> found;
  std::set<Likeness> seen;
  for (auto& groups : all) {
    std::set<int> grouped;
    for (const auto& group : groups) grouped.insert(group.begin(), group.end());
    if (grouped.empty() || grouped.size() == fastest_first.size()) continue;
    const bool near =
        std::ranges::all_of(groups, [&](const auto& group) { return in_one_host(cluster, group); });
    if (!near || !seen.insert(likeness(cluster, groups)).second) continue;
    auto& own = found.emplace_back(std::move(groups));
    std::ranges::copy_if(fastest_first, std::back_inserter(own.whole),
                         [&](int device) { return !grouped.contains(device); });
  }
  return found;
}

bool in_one_host(const Cluster& cluster, const std::vector<int>& group) {
  return std::ranges::all_of(group,
                             [&](int member) { return cluster.same_host(member, group.front()); });
}

std::vector<std::size_t> counts_of(const Cluster& cluster, const std::vector<int>& sorted) {
  std::set<std::size_t> counts = {sorted.size()};
  for (std::size_t count = 2; count < sorted.size(); ++count) {
    const bool few = sorted.size() <= kEveryCount;
    const bool power = (count & (count - 1)) == 0;
    const bool kind_ends = kind_of(cluster, sorted[count - 1]) != kind_of(cluster, sorted[count]);
    if (few || power || kind_ends) counts.insert(count);
  }
  counts.erase(1);
  return {counts.begin(), counts.end()};
}

std::vector<Layout> layouts_of(const Cluster& cluster, const std::vector<int>& fastest_first,
                               std::size_t units, bool any_number) {
  Finder finder(cluster, units);
  if (cluster.size() <= kSearchedThrough) {
    std::vector<int> chosen;
    finder.every_order(chosen, fastest_first);
  } else {
    auto largest_first = fastest_first;
    std::ranges::stable_sort(largest_first, {},
                             [&](int d) { return -cluster.device(d).memory_bytes; });
    const bool many = fastest_first.size() > kEveryCount;
    for (const auto& list : {fastest_first, largest_first}) {
      for (const auto count : counts_of(cluster, list)) {
        if (many && count * 8 < list.size()) continue;
        if (!any_number && count < list.size()) continue;
        const std::vector<int> some(list.begin(),
                                    list.begin() + static_cast<std::ptrdiff_t>(count));
        for (const auto& order : orders_of(cluster, some, many)) finder.in_order(order);
      }
    }
  }
  if (fastest_first.size() <= kEveryCount) {
    finder.groups_as_stages(fastest_first, true);
    finder.groups_as_stages(fastest_first, false);
  }
  return finder.take();
}

std::vector<Layout> parts_of(const std::vector<int>& devices, std::size_t stages) {
  std::vector<Layout> found;
  // A bit for each device but the first: whether a stage begins with it.
  const unsigned sets = 1u << (devices.size() - 1);
  for (unsigned set = 1; set + 1 < sets; ++set) {
    Layout layout = {{devices.front()}};
    for (std::size_t i = 1; i < devices.size(); ++i) {
      if (set >> (i - 1) & 1) layout.emplace_back();
      layout.back().push_back(devices[i]);
    }
    if (layout.size() <= stages) found.push_back(std::move(layout));
  }
  return found;
}

Layout in_their_order(const std::vector<std::size_t>& counts) {
  Layout layout;
  int next = 0;
  for (const auto count : counts) {
    auto& stage = layout.emplace_back(count);
    std::iota(stage.begin(), stage.end(), next);
    next += static_cast<int>(count);
  }
  return layout;
}

std::vector<Layout> neighbours_of(const Layout& layout) {
  std::vector<Layout> found;
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (std::size_t s = 0; s < layout.size(); ++s) {
    for (std::size_t r = 0; r < layout[s].size(); ++r) places.emplace_back(s, r);
  }
  for (std::size_t a = 0; a < places.size(); ++a) {
    for (std::size_t b = a + 1; b < places.size(); ++b) {
      auto next = layout;
      std::swap(next[places[a].first][places[a].second], next[places[b].first][places[b].second]);
      found.push_back(std::move(next));
    }
  }
  const bool single = std::ranges::all_of(layout, [](const auto& s) { return s.size() == 1; });
  for (std::size_t s = 0; single && layout.size() > 2 && s < layout.size(); ++s) {
    auto next = layout;
    next.erase(next.begin() + static_cast<std::ptrdiff_t>(s));
    found.push_back(std::move(next));
  }
  return found;
}

}  // namespace bimetal::plan
