#include "bimetal/c10d/island_plan.h"

#include <algorithm>

namespace bimetal::c10d {
namespace {

bool card_is_shared(const std::vector<VendorOffer>& offers, int rank) {
  const VendorOffer& own = offers[static_cast<std::size_t>(rank)];
  return std::ranges::count_if(offers, [&](const VendorOffer& other) {
           return other.vendor == own.vendor && other.device == own.device;
         }) > 1;
}

}  // namespace

std::vector<std::vector<int>> plan_islands(const std::vector<VendorOffer>& offers,
                                           const comm::Topology& topology) {
  std::vector<std::vector<int>> islands;
  for (const auto& host : topology.islands) {
    std::array<std::vector<int>, 3> by_vendor;
    for (const int rank : host) {
      const Vendor vendor = offers[static_cast<std::size_t>(rank)].vendor;
      if (vendor == Vendor::none || card_is_shared(offers, rank)) {
        islands.push_back({rank});
      } else {
        by_vendor[static_cast<std::size_t>(vendor)].push_back(rank);
      }
    }
    for (auto& island : by_vendor) {
      if (!island.empty()) islands.push_back(std::move(island));
    }
  }
  std::ranges::sort(islands, {}, [](const auto& island) { return island.front(); });
  return islands;
}

}  // namespace bimetal::c10d
