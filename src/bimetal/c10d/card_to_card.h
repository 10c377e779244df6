#pragma once
// Tensors from card to card, where a vendor library (NCCL, RCCL) joins two ranks of one host:
// without the host's memory, and without a host that waits. docs/islands.md has the picture.
//
// A vendor library wants both ranks of a pair to make their calls in one order, and occupies a card
// that waits for the other. So a transfer is launched when both sides are ready for it: the fabric
// carries a note of each. The lower rank of the pair gives the order, which both follow.
//
// What has been run: a c10d::Backend of this project in the vendor library's place, on the CPU and
// on a simulated device. Not yet run: NCCL or RCCL.

#include <torch/csrc/api/include/torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/work.h"

namespace bimetal::c10d {

/// One rank's ways to others. Thread-safe, but for its end.
class CardToCard {
 public:
  /// `pairs`: by rank of `group`, a vendor library that joins that one and this, in ascending
  /// order, and nobody else. `timeout`: of one transfer, once both sides are ready for it.
  CardToCard(comm::Group group, const torch::Device& device, std::map<int, BackendPtr> pairs,
             std::chrono::milliseconds timeout);
  /// Transfers under way end in Aborted.
  ~CardToCard();
  CardToCard(const CardToCard&) = delete;
  CardToCard& operator=(const CardToCard&) = delete;

  /// Whether there is a way to rank `peer` of the group.
  bool reaches(int peer) const { return lanes_.contains(peer); }

  /// For what recv() gets: on the device, contiguous, whatever it holds. Its memory is not waited
  /// for by what the current stream has queued.
  torch::Tensor room(torch::IntArrayRef sizes, torch::ScalarType dtype) const;

  /// Sends `tensor`, of this device, contiguous and not empty, once the device has come to this
  /// call. It must not be changed, and is kept alive, until the work is done. `peer` must be
  /// reached, and receive as many bytes by the same tag. Tags are unlike each other and unlike
  /// those of messages of the group between these ranks; in what order they come does not matter.
  /// Errors through the work: the fabric's where the peer is lost; System with the vendor library's
  /// words; Timeout; CallMismatch for unlike numbers of bytes. Any of them ends the group.
  comm::Work send(const torch::Tensor& tensor, int peer, std::uint64_t tag);

  /// Receives into what room() gave. Once the work is done what is queued later sees it.
  comm::Work recv(const torch::Tensor& room, int peer, std::uint64_t tag);

  /// What this thread's current stream gets from now on may use what has been received: its memory
  /// is kept for that.
  void hand_over(const torch::Tensor& received) const;

  /// Runs `task`, which must not throw, on a thread that may wait for the device, unlike the
  /// fabric's.
  void soon(int peer, std::function<void()> task);

 private:
  using Note = std::int64_t;  ///< a message of the fabric about a transfer
  struct Transfer;
  using TransferPtr = std::shared_ptr<Transfer>;
  class Lane;

  torch::Device device_;
  std::optional<c10::Stream> stream_;  ///< of rooms and of the vendor library's calls
  std::chrono::milliseconds timeout_;
  std::map<int, std::shared_ptr<Lane>> lanes_;
  std::atomic<bool> closing_{false};
  std::optional<comm::Executor> computed_;  ///< looks out for what is to be sent
};

/// Connects the ranks of `group` that are on one island (plan_islands) and for which `talk`, asked
/// for each pair in ascending order and with the same answers on all ranks, is true. Collective.
/// nullptr where this rank reaches nobody. Errors: those of form_islands().
std::shared_ptr<CardToCard> connect_cards(comm::Group group, const torch::Device& device,
                                          const VendorLibrary& library,
                                          const std::function<bool(int lower, int higher)>& talk,
                                          std::chrono::milliseconds timeout);

}  // namespace bimetal::c10d
