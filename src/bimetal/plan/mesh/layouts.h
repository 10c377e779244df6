#pragma once
// Which devices may form which stages of a pipeline: candidates for a search.

#include <cstddef>
#include <vector>

#include "bimetal/plan/mesh/cluster.h"
#include "bimetal/plan/mesh/step_choice.h"

namespace bimetal::plan {

/// Clusters of up to so many devices are searched through: every order of every part of them.
inline constexpr int kSearchedThrough = 4;

/// `fastest_first`: all devices; `units`: stages at most. Up to kSearchedThrough: every sequence of
/// two or more as stages of one device each or of any number; those that are alike once. Beyond:
/// the 2, 3, … fastest and the ones with most memory as stages, in the order of their speed, memory
/// and hosts, either way; and boxes of them, in which either the stages or the replicas are alike.
/// Of more than 16 devices not every number of them is tried, but those at which a kind of device
/// ends, and powers of two, and in the order of speed, memory or hosts alone. Of up to 16 also one
/// stage for each host, and for each kind of device. Without `any_number`, of more than
/// kSearchedThrough devices, orders are of all of them.
std::vector<Layout> layouts_of(const Cluster& cluster, const std::vector<int>& fastest_first,
                               std::size_t units, bool any_number = true);

/// `devices` in their order as that many or fewer stages of any number of replicas, but of one
/// each, and all in one.
std::vector<Layout> parts_of(const std::vector<int>& devices, std::size_t stages);

/// All devices, or groups of them, in their order: so many in each stage.
Layout in_their_order(const std::vector<std::size_t>& counts);

/// Layouts one change away: two devices have changed places, or one has gone.
std::vector<Layout> neighbours_of(const Layout& layout);

/// Devices in groups of as many each, which compute every layer together.
using Groups = std::vector<std::vector<int>>;

/// Ways to form groups of `tensor` devices, the faster first in each. Up to kSearchedThrough
/// devices: every one. Beyond: of each host those that are alike; and of up to 16 devices also
/// whichever come next in the order of speed, wherever they are.
std::vector<Groups> groupings_of(const Cluster& cluster, const std::vector<int>& fastest_first,
                                 std::size_t tensor);

/// Some groups of `parts` devices, and devices beside them that keep every tensor whole.
struct GroupsBeside {
  Groups groups = {};
  std::vector<int> whole = {};
};

/// Ways to form such, in which the devices of a group are of one host, and of those that are alike
/// one: up to kSearchedThrough devices every one, beyond of all hosts, and of the fastest that has
/// so many devices, as many groups as leave a device whole.
std::vector<GroupsBeside> groupings_beside(const Cluster& cluster,
                                           const std::vector<int>& fastest_first,
                                           std::size_t parts);

bool in_one_host(const Cluster& cluster, const std::vector<int>& group);

/// How many devices of a sorted list are worth trying.
std::vector<std::size_t> counts_of(const Cluster& cluster, const std::vector<int>& sorted);

}  // namespace bimetal::plan
