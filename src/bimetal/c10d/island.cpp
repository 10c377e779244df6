#include "bimetal/c10d/island.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/comm/failure.h"

namespace bimetal::c10d {
namespace {

using std::chrono::milliseconds;

milliseconds left_of(Deadline deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1));
}

}  // namespace

Island::Island(comm::Group members, BackendPtr vendor, comm::Group leaders,
               const torch::Device& device)
    : members_(std::move(members)),
      vendor_(std::move(vendor)),
      leaders_(std::move(leaders)),
      staging_(device),
      device_(device) {
  const bool together = members_ && members_.size() > 1;
  const bool first = !together || members_.rank() == 0;
  if (static_cast<bool>(vendor_) != together || leads() != first) {
    throw Error(ErrorCode::InvalidArgument,
                "an island of several ranks needs a vendor library, and its first rank alone is "
                "among the leaders");
  }
}

Island::~Island() = default;

comm::Work Island::all_reduce(torch::Tensor flat, comm::DType dtype, Deadline deadline) {
  auto state = std::make_shared<comm::Work::State>();
  executor_.push([this, flat = std::move(flat), dtype, deadline, state]() mutable {
    std::optional<comm::Failure> failure;
    try {
      sum(flat, dtype, deadline);
    } catch (...) {
      failure = failure_of(std::current_exception());
      give_up(failure->message);
    }
    flat = torch::Tensor();
    state->finish(std::move(failure));
  });
  return comm::Work(std::move(state));
}

void Island::sum(torch::Tensor& flat, comm::DType dtype, Deadline deadline) {
  if (!failure_.empty()) throw Error(ErrorCode::Aborted, failure_);
  const torch::NoGradGuard no_grad;
  if (vendor_) reduce_to_leader(flat, deadline);
  if (leads() && leaders_.size() > 1) exchange(flat, dtype, deadline);
  if (vendor_) spread_from_leader(flat, deadline);
}

/// The device waits for nobody: the fabric, which names who is lost or late, has seen all members
/// come before the vendor library, whose waiting occupies the device, is called.
void Island::reduce_to_leader(torch::Tensor& flat, Deadline deadline) {
  members_.barrier(deadline).wait();
  with_vendor("reduce", [&] {
    std::vector<at::Tensor> tensors{flat};
    ::c10d::ReduceOptions options;
    options.reduceOp = ::c10d::ReduceOp::SUM;
    options.rootRank = 0;
    options.timeout = left_of(deadline);
    vendor_->reduce(tensors, options)->wait(options.timeout);
  });
  staging_.mark_to_device().wait(deadline);
}

void Island::exchange(torch::Tensor& flat, comm::DType dtype, Deadline deadline) {
  const auto leaders_sum = [&](torch::Tensor& host) {
    const comm::Buffer buffer{host.data_ptr(), static_cast<std::size_t>(host.numel()), dtype};
    leaders_.all_reduce(buffer, comm::ReduceOp::sum, deadline).wait();
  };
  if (device_.is_cpu()) return leaders_sum(flat);
  const bool fits =
      host_.defined() && host_.scalar_type() == flat.scalar_type() && host_.numel() >= flat.numel();
  if (!fits) host_ = device::host_buffer(flat.numel(), flat.scalar_type(), device_);
  auto host = host_.narrow(0, 0, flat.numel());
  staging_.to_host(flat, host);
  staging_.mark_to_host().wait(deadline);
  leaders_sum(host);
  staging_.to_device(host, flat);
  staging_.mark_to_device().wait(deadline);
}

/// As before: members wait in the fabric until their leader has the result.
void Island::spread_from_leader(torch::Tensor& flat, Deadline deadline) {
  std::uint8_t here = 1;
  members_.broadcast({&here, 1, comm::DType::uint8}, 0, deadline).wait();
  with_vendor("broadcast", [&] {
    std::vector<at::Tensor> tensors{flat};
    ::c10d::BroadcastOptions options;
    options.rootRank = 0;
    options.timeout = left_of(deadline);
    vendor_->broadcast(tensors, options)->wait(options.timeout);
  });
  staging_.mark_to_device().wait(deadline);
}

template <typename Call>
void Island::with_vendor(const char* what, Call&& call) try {
  call();
} catch (const std::exception& error) {
  throw Error(ErrorCode::System,
              fmt::format("rank {} of its island: the vendor library's {} failed: {}",
                          members_.rank(), what, error.what()));
}

/// Frees whoever waits for this rank, in the fabric or in the vendor library.
void Island::give_up(const std::string& reason) {
  if (!failure_.empty()) return;
  failure_ = reason;
  if (members_) members_.abort(reason);
  if (leaders_) leaders_.abort(reason);
  if (!vendor_) return;
  try {
    vendor_->abort();
  } catch (const std::exception&) {
    // It has failed already; the first reason counts.
  }
}

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
                                     const VendorOffer& offer, const ConnectVendor& connect) {
  if (world.size() == 1) return nullptr;
  const auto islands = plan_islands(exchange_offers(world, offer), world.topology());
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
  auto vendor = connect_all(world, members, connect);
  log(LogLevel::info, "rank {} is one of {} on its island; {} islands", world.rank(),
      members ? members.size() : 1, islands.size());
  return std::make_shared<Island>(std::move(members), std::move(vendor), std::move(leaders),
                                  device);
}

std::shared_ptr<Island> form_islands(comm::Group world, const torch::Device& device,
                                     std::chrono::milliseconds timeout) {
  const auto library = vendor_library(device, timeout);
  return form_islands(std::move(world), device, library.offer, library.connect);
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
