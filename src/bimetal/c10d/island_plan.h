#pragma once
// Which ranks make an island.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bimetal/comm/topology.h"

namespace bimetal::c10d {

enum class Vendor : std::uint8_t { none = 0, nccl = 1, rccl = 2 };

/// What a rank has to offer: a library of its build, for the device that it computes on.
struct VendorOffer {
  Vendor vendor = Vendor::none;
  std::array<std::byte, 16> device{};  ///< the card's own number: NCCL refuses one card twice
};

/// Every rank in exactly one island, ascending, by their lowest rank. Together are ranks that share
/// memory (and so a host: found out by trying, never by its name) and a vendor, on cards of their
/// own. Ranks whose card another one computes on, too, are alone.
std::vector<std::vector<int>> plan_islands(const std::vector<VendorOffer>& offers,
                                           const comm::Topology& topology);

}  // namespace bimetal::c10d
