// Which ranks make an island, and how they get it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/c10d/island.h"

namespace bimetal::c10d {
namespace {

constexpr std::size_t kOfferBytes = 17;

}  // namespace

std::vector<VendorOffer> exchange_offers(comm::Group& world, const VendorOffer& own) {
  std::vector<std::uint8_t> mine(kOfferBytes);
  mine[0] = static_cast<std::uint8_t>(own.vendor);
  std::memcpy(mine.data() + 1, own.device.data(), own.device.size());
  std::vector<std::uint8_t> all(kOfferBytes * static_cast<std::size_t>(world.size()));
  world.all_gather(comm::buffer(mine), comm::buffer(all)).wait();
  std::vector<VendorOffer> offers;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto* bytes = all.data() + kOfferBytes * static_cast<std::size_t>(rank);
    VendorOffer offer;
    // A vendor of a later release is none that this one could join.
    if (bytes[0] <= static_cast<std::uint8_t>(Vendor::rccl)) {
      offer.vendor = static_cast<Vendor>(bytes[0]);
    }
    std::memcpy(offer.device.data(), bytes + 1, offer.device.size());
    offers.push_back(offer);
  }
  return offers;
}

BackendPtr connect_all(comm::Group& world, const comm::Group& members,
                       const ConnectVendor& connect) {
  BackendPtr vendor;
  std::string failure;
  if (members) {
    try {
      vendor = connect(members);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  std::vector<std::int32_t> lowest{failure.empty() ? world.size() : world.rank()};
  world.all_reduce(comm::buffer(lowest), comm::ReduceOp::min).wait();
  if (lowest[0] == world.size()) return vendor;
  throw Error(
      ErrorCode::System,
      failure.empty()
          ? fmt::format("rank {} could not start its vendor library; it says why", lowest[0])
          : fmt::format("rank {} could not start its vendor library: {}", world.rank(), failure),
      lowest[0]);
}

std::shared_ptr<Island> form_islands(comm::Group world, const torch::Device& device,
                                     const VendorLibrary& library) {
  if (world.size() == 1 || !library) return nullptr;
  Places places{plan_islands(exchange_offers(world, library.offer), world.topology()),
                world.rank()};
  const auto& islands = places.islands;
  if (std::ranges::none_of(islands, [](const auto& island) { return island.size() > 1; })) {
    return nullptr;
  }
  std::vector<int> first;
  for (const auto& island : islands) first.push_back(island.front());
  auto leaders = world.subgroup(first);
  comm::Group members;
  for (const auto& island : islands) {
    if (island.size() < 2) continue;
    if (auto mine = world.subgroup(island)) members = std::move(mine);
  }
  auto vendor = connect_all(world, members, library.connect);
  log(LogLevel::info, "rank {} is one of {} on its island; {} islands", world.rank(),
      members ? members.size() : 1, islands.size());
  return std::make_shared<Island>(std::move(places), std::move(members), std::move(vendor),
                                  std::move(leaders), device);
}

FormIsland islands_of(const torch::Device& device, std::chrono::milliseconds timeout) {
  return [device, timeout](comm::Group world) {
    return form_islands(std::move(world), device, vendor_library(device, timeout));
  };
}

VendorLibrary vendor_library(const torch::Device& device, std::chrono::milliseconds timeout) {
  return {vendor_offer(device), [device, timeout](comm::Group members) {
            return connect_vendor(std::move(members), device, timeout);
          }};
}

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
