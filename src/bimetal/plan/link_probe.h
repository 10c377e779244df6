#pragma once
// Measures the link between a group's ranks by what training does on it: all-reduces.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/plan/plan.h"

namespace bimetal::plan {

/// Latency from the smallest all-reduces, bandwidth from ones of up to `gradient_bytes` (a slow
/// link is measured with less, so that it takes seconds at most). Medians of repeated runs as the
/// slowest rank saw them: the same figures on every rank. Zeros in a world of one. Collective.
LinkSpeed probe_link(comm::Group group, std::uint64_t gradient_bytes);

/// The way from one rank to another.
using RankPair = std::pair<int, int>;

/// The speed of each of these pairs, one after the other, by messages there and back. Messages are
/// shorter on a slow link. Each direction has the latency of half a round trip. Zeros from a rank
/// to itself. The same figures on every rank. Collective; all ranks give the same pairs.
std::vector<LinkSpeed> probe_pairs(comm::Group group, std::span<const RankPair> pairs);
/// Every ordered pair: [from · n + to].
std::vector<LinkSpeed> probe_pairs(comm::Group group);

/// The time that a device takes to copy bytes to page-locked memory of its host, and back. Zeros
/// for a CPU, whose data is there.
struct HostCopies {
  double latency_s = 0;  ///< of the smallest copy, one way
  double out_s_per_byte = 0, in_s_per_byte = 0;
};

/// A way between two ranks as what their devices compute goes it: out of one, and into the other.
LinkSpeed with_copies(const LinkSpeed& way, const HostCopies& from, const HostCopies& to);

/// The link of all-reduces likewise: gradients leave each device, and come back. The slowest
/// counts. `ranks`: the copies of all ranks, of which there are several.
LinkSpeed with_copies(const LinkSpeed& link, std::span<const HostCopies> ranks);

}  // namespace bimetal::plan
