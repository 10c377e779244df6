#pragma once
// An island: ranks of one host whose devices one vendor library joins (NCCL, RCCL). They reduce on
// the device among themselves; the first of them, the leader, meets the other islands' leaders
// through the fabric. docs/islands.md has the whole picture.
//
// Hierarchical reduction as in Horovod (Sergeev and Del Balso, arXiv:1802.05799) and NCCL itself,
// with the fabric in place of a second vendor library between the hosts.
//
// Run so far: islands of CPU tensors, with a c10d::Backend of this project in the vendor library's
// place (tests/golden). Not yet run: NCCL or RCCL on a device.
//
// The vendor library of this build, if it has one: ProcessGroupNCCL, which is NCCL in libtorch for
// CUDA and RCCL in libtorch for ROCm. A build without either compiles vendor_none.cpp.

#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/work.h"
#include "bimetal/device/staging.h"

namespace bimetal::c10d {

using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

/// One rank's side of its island. Calls must come in the same order on all ranks, from one thread.
class Island {
 public:
  /// `members`: the fabric's group of the island's ranks, empty if this one is alone; `vendor`
  /// joins the same ranks in the same order, empty likewise. `leaders`: the fabric's group of all
  /// islands' first ranks, empty on the others. `device` is where this rank's tensors live.
  Island(comm::Group members, BackendPtr vendor, comm::Group leaders, const torch::Device& device);
  ~Island();
  Island(const Island&) = delete;
  Island& operator=(const Island&) = delete;

  /// How many ranks reduce here on the device; 1: this one is alone.
  int size() const { return members_ ? members_.size() : 1; }
  bool leads() const noexcept { return static_cast<bool>(leaders_); }

  /// Sums `flat`, contiguous, on the device and of the fabric's type `dtype`, over all ranks of all
  /// islands, in place. Work on it that was queued on other streams must have ended. It is kept
  /// alive until the work is done. Errors through the work: those of the fabric; Error(System) with
  /// the vendor library's words. Any of them ends the island on all its ranks.
  comm::Work all_reduce(torch::Tensor flat, comm::DType dtype, Deadline deadline);

 private:
  void sum(torch::Tensor& flat, comm::DType dtype, Deadline deadline);
  void reduce_to_leader(torch::Tensor& flat, Deadline deadline);
  void exchange(torch::Tensor& flat, comm::DType dtype, Deadline deadline);
  void spread_from_leader(torch::Tensor& flat, Deadline deadline);
  template <typename Call>
  void with_vendor(const char* what, Call&& call);
  void give_up(const std::string& reason);

  comm::Group members_;
  BackendPtr vendor_;
  comm::Group leaders_;
  device::HostStaging staging_;
  const torch::Device device_;
  torch::Tensor host_;  ///< of a leader on a device: summed by the fabric; as long as the
                        ///< longest
  std::string failure_;
  comm::Executor executor_;  ///< last: its tasks use all of the above
};

// Which ranks make an island.

enum class Vendor : std::uint8_t { none = 0, nccl = 1, rccl = 2 };

/// A rank's offer: a library of its build, for the device that it computes on.
struct VendorOffer {
  Vendor vendor = Vendor::none;
  std::array<std::byte, 16> device{};  ///< the card's own number: NCCL refuses one card twice
};

/// Every rank in exactly one island, ascending, by their lowest rank. Together are ranks that share
/// memory (and so a host: found out by trying, never by its name) and a vendor, on cards of their
/// own. Ranks whose card another one computes on, too, are alone.
std::vector<std::vector<int>> plan_islands(const std::vector<VendorOffer>& offers,
                                           const comm::Topology& topology);

// From a world of ranks to islands.

/// How the ranks of an island get their vendor library: connect_vendor, or a test's own.
using ConnectVendor = std::function<BackendPtr(comm::Group members)>;

/// What a rank has to offer, and how it connects. Left out: no vendor library is to be used.
struct VendorLibrary {
  VendorOffer offer = {};
  ConnectVendor connect = {};

  explicit operator bool() const noexcept { return static_cast<bool>(connect); }
};

/// By rank. Collective.
std::vector<VendorOffer> exchange_offers(comm::Group& world, const VendorOffer& own);

/// Those of `world` that are `members` connect; everyone learns whether they could, so that none
/// goes on without the others. Collective over `world`. Error(System) on every rank, with the words
/// of `connect` where it has failed, else with the rank that knows them.
BackendPtr connect_all(comm::Group& world, const comm::Group& members,
                       const ConnectVendor& connect);

/// Collective over `world`: who shares a vendor library with whom? Empty on every rank if nobody
/// does: the fabric alone serves all of them then. Errors: those of the fabric and of `connect`, on
/// every rank.
std::shared_ptr<Island> form_islands(comm::Group world, const torch::Device& device,
                                     const VendorOffer& offer, const ConnectVendor& connect);

/// The same with the vendor library of this build.
std::shared_ptr<Island> form_islands(comm::Group world, const torch::Device& device,
                                     std::chrono::milliseconds timeout);

/// This rank's offer for `device`; Vendor::none if no vendor library of this build serves it.
VendorOffer vendor_offer(const torch::Device& device);

/// Joins the members' devices, in their order. Collective. Errors: Unsupported in a build without a
/// vendor library; System with the library's words.
c10::intrusive_ptr<::c10d::Backend> connect_vendor(comm::Group members, const torch::Device& device,
                                                   std::chrono::milliseconds timeout);

/// Both together, for callers that want a vendor library.
VendorLibrary vendor_library(const torch::Device& device, std::chrono::milliseconds timeout);

}  // namespace bimetal::c10d
