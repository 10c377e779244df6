#pragma once
// An island: ranks of one host whose devices one vendor library joins (NCCL, RCCL). They exchange
// on the device among themselves; the first of them, the leader, meets the other islands' leaders
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

#include <c10/core/Stream.h>
#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/work.h"
#include "bimetal/device/staging.h"

namespace bimetal::c10d {

using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

/// Who is where: each rank of a world in exactly one island, in ascending order of first ranks.
struct Places {
  std::vector<std::vector<int>> islands;
  int rank = 0;  ///< this one
};

/// One rank's side of its island. Calls must come in the same order on all ranks, from one thread.
/// Each of them returns at once. Its tensors are contiguous, on the device and of the fabric's type
/// `dtype`. Work on them that was queued before must have ended. They are kept alive until the work
/// is done; later work sees them. Errors through the work: those of the fabric, as PeerLost;
/// Timeout at `deadline`; Error(System) with the vendor library's words. Any of them ends the
/// island on all its ranks, with what is beside() it.
class Island {
 public:
  /// `members`: the fabric's group of the island's ranks, empty if this one is alone; `vendor`
  /// joins the same ranks in the same order, empty likewise. `leaders`: the fabric's group of all
  /// islands' first ranks, empty on the others. `device` is where this rank's tensors live.
  Island(Places places, comm::Group members, BackendPtr vendor, comm::Group leaders,
         const torch::Device& device);
  /// Calls under way end in Aborted where the others do not come to them.
  ~Island();
  Island(const Island&) = delete;
  Island& operator=(const Island&) = delete;

  /// The same ranks and cards, for calls in an order of their own. Collective over all ranks.
  std::shared_ptr<Island> beside() const;

  /// How many ranks reduce here on the device; 1: this one is alone.
  int size() const { return members_ ? members_.size() : 1; }
  bool leads() const noexcept { return static_cast<bool>(leaders_); }
  /// Whether the ranks are numbered island by island, as gather() and reduce_scatter() need it. The
  /// same on all ranks.
  bool in_order() const;

  /// Sums `flat`, or takes the largest, over all ranks of all islands, in place.
  comm::Work all_reduce(torch::Tensor flat, comm::DType dtype, Deadline deadline,
                        comm::ReduceOp op = comm::ReduceOp::sum);

  /// `flat` consists of a part for each rank, of counts[rank] elements, any of which may be 0, and
  /// has this rank's. It gets those of all others. The same counts on every rank.
  comm::Work gather(torch::Tensor flat, std::vector<std::size_t> counts, comm::DType dtype,
                    Deadline deadline);
  /// `own`, which may be its place in `flat`, gets the sum of this rank's part in all ranks'
  /// `flat`, which is scratch afterwards. Likewise.
  comm::Work reduce_scatter(torch::Tensor flat, torch::Tensor own, std::vector<std::size_t> counts,
                            comm::DType dtype, Deadline deadline);

  /// Ends all calls, here and on the other ranks, with Aborted. From any thread.
  void give_up(const std::string& reason);

 private:
  class VendorCalls;
  using Works = std::vector<c10::intrusive_ptr<::c10d::Work>>;
  struct Parts {
    std::int64_t begin = 0, end = 0;          ///< of this island's
    std::vector<torch::Tensor> members = {};  ///< by rank of the island
    torch::Tensor own = {};

    bool equal() const;
    torch::Tensor before(const torch::Tensor& flat) const { return flat.narrow(0, 0, begin); }
    torch::Tensor island_of(const torch::Tensor& flat) const {
      return flat.narrow(0, begin, end - begin);
    }
    torch::Tensor behind(const torch::Tensor& flat) const {
      return flat.narrow(0, end, flat.numel() - end);
    }
  };

  Island(Places places, comm::Group members, std::shared_ptr<VendorCalls> vendor,
         comm::Group leaders, const torch::Device& device);

  comm::Work later(std::function<void()> task);
  Parts parts_of(const torch::Tensor& flat, const std::vector<std::size_t>& counts) const;
  std::vector<std::size_t> by_island(const std::vector<std::size_t>& counts) const;
  void reduce_everywhere(const torch::Tensor& flat, Deadline deadline, comm::ReduceOp op);
  void reduce_to_leader(const torch::Tensor& flat, Deadline deadline,
                        comm::ReduceOp op = comm::ReduceOp::sum);
  void spread_from_leader(const std::vector<torch::Tensor>& tensors, Deadline deadline);
  void gather_here(const Parts& parts, const torch::Tensor& flat, Deadline deadline);
  void reduce_here(const torch::Tensor& flat, torch::Tensor own, const Parts& parts,
                   Deadline deadline);
  template <typename Launch>
  void with_vendor(const char* what, Deadline deadline, const Launch& launch);
  void end_all(const Works& works, const char* what, Deadline deadline) const;
  void require_members() const;
  void require_unbroken() const;
  torch::Tensor on_host(const torch::Tensor& flat);
  void fail(const comm::Failure& failure);
  void copy(const torch::Tensor& from, const torch::Tensor& to, Deadline deadline);

  const Places places_;
  comm::Group members_;
  std::shared_ptr<VendorCalls> vendor_;
  comm::Group leaders_;
  device::HostStaging staging_;
  const torch::Device device_;
  std::optional<c10::Stream> stream_;  ///< of a device: where calls begin
  torch::Tensor host_;  ///< of a leader on a device: for the fabric; as long as the longest
  mutable std::mutex mutex_;
  std::optional<comm::Failure> failure_;
  std::atomic<int> under_way_{0};
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

/// What a rank has to offer, and how it connects. Left out, on all ranks: no vendor library is to
/// be used.
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
/// does, or `library` is left out: the fabric alone serves all of them then. Errors: those of the
/// fabric and of `connect`, on every rank.
std::shared_ptr<Island> form_islands(comm::Group world, const torch::Device& device,
                                     const VendorLibrary& library);

/// The island of a group's ranks, or nullptr. Collective: how strategies that make groups of their
/// own get theirs.
using FormIsland = std::function<std::shared_ptr<Island>(comm::Group world)>;

/// form_islands() with the vendor library of this build. `timeout`: of its calls.
FormIsland islands_of(const torch::Device& device, std::chrono::milliseconds timeout);

/// This rank's offer for `device`; Vendor::none if no vendor library of this build serves it.
VendorOffer vendor_offer(const torch::Device& device);

/// Joins the members' devices, in their order. Collective. Errors: Unsupported in a build without a
/// vendor library; System with the library's words.
c10::intrusive_ptr<::c10d::Backend> connect_vendor(comm::Group members, const torch::Device& device,
                                                   std::chrono::milliseconds timeout);

/// Both together, for callers that want a vendor library.
VendorLibrary vendor_library(const torch::Device& device, std::chrono::milliseconds timeout);

}  // namespace bimetal::c10d
