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

/// Of each of these pairs, one after the other, by messages there and back, on a slow link by
/// shorter ones. Each direction has the latency of half a round trip. Zeros from a rank to itself.
/// The same figures on every rank. Collective; all ranks give the same pairs.
std::vector<LinkSpeed> probe_pairs(comm::Group group, std::span<const RankPair> pairs);
/// Every ordered pair: [from · n + to].
std::vector<LinkSpeed> probe_pairs(comm::Group group);

/// What a device takes to bring bytes to page-locked memory of its host, and back; zeros of a CPU,
/// which has them there.
struct HostCopies {
  double latency_s = 0;  ///< of the smallest copy, one way
  double out_s_per_byte = 0, in_s_per_byte = 0;
};

/// A way between two ranks as what their devices compute goes it: out of one, and into the other.
LinkSpeed with_copies(const LinkSpeed& way, const HostCopies& from, const HostCopies& to);

/// The link of all-reduces likewise: what is summed leaves each device, and comes back. The slowest
/// counts. `ranks`: of all, several.
LinkSpeed with_copies(const LinkSpeed& link, std::span<const HostCopies> ranks);

}  // namespace bimetal::plan
