#pragma once
// A c10d::Backend over the fabric in the place of NCCL, for islands.

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::testing {

/// An island's vendor library, on tensors whose memory the host can read.
class StandIn final : public ::c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

  explicit StandIn(const comm::Group& members)
      : Backend(members.rank(), members.size()), members_(members) {}

  const std::string getBackendName() const override { return "stand-in"; }

  WorkPtr reduce(std::vector<at::Tensor>& tensors, const ::c10d::ReduceOptions& options) override {
    const auto data = parallel::tensor_buffer(on_cpu(tensors.front()));
    const auto by = Deadline::after(options.timeout);
    return over(members_.reduce(data, static_cast<int>(options.rootRank), comm::ReduceOp::sum, by));
  }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const ::c10d::BroadcastOptions& options) override {
    const auto data = parallel::tensor_buffer(on_cpu(tensors.front()));
    const auto by = Deadline::after(options.timeout);
    return over(members_.broadcast(data, static_cast<int>(options.rootRank), by));
  }

  /// As in NCCL: what both sides call in one order meets, whatever the tag; the call returns at
  /// once, and the sender is not through before the receiver has called.
  WorkPtr send(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    require_one_at_a_time();
    const auto data = parallel::tensor_buffer(on_cpu(tensors.front()));
    const auto met = std::make_shared<std::uint8_t>();
    return last_ = c10::make_intrusive<UnderWay>(
               std::vector{
                   members_.send(data, peer, kData, long_after()),
                   members_.recv({met.get(), 1, comm::DType::uint8}, peer, kMet, long_after())},
               met);
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    require_one_at_a_time();
    const auto data = parallel::tensor_buffer(on_cpu(tensors.front()));
    const auto met = std::make_shared<std::uint8_t>();
    return last_ = c10::make_intrusive<UnderWay>(
               std::vector{
                   members_.recv(data, peer, kData, long_after()),
                   members_.send({met.get(), 1, comm::DType::uint8}, peer, kMet, long_after())},
               met);
  }

  void abort() override { members_.abort("the island was given up"); }

 private:
  static constexpr std::uint64_t kData = 1, kMet = 2;
  static Deadline long_after() { return Deadline::after(std::chrono::hours(1)); }

  struct UnderWay final : ::c10d::Work {
    UnderWay(std::vector<comm::Work> parts, std::shared_ptr<std::uint8_t> met)
        : works(std::move(parts)) {
      for (const auto& work : works) work.on_done([met](const std::exception_ptr&) {});
    }
    bool isCompleted() override {
      return std::ranges::all_of(works, [](const auto& work) { return work.done(); });
    }
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      for (const auto& work : works) work.wait();
      return true;
    }
    std::vector<comm::Work> works;
  };

  /// Two at once would have to be called in one order by both sides.
  void require_one_at_a_time() const {
    if (last_ && !last_->isCompleted()) throw std::logic_error("a transfer is under way");
  }

  static at::Tensor on_cpu(const at::Tensor& tensor) {
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.scalar_type());
  }

  struct Over final : ::c10d::Work {
    Over() { finish(); }
  };
  static WorkPtr over(const comm::Work& work) {
    work.wait();
    return c10::make_intrusive<Over>();
  }

  comm::Group members_;
  WorkPtr last_;
};

inline c10d::BackendPtr backend_of(const comm::Group& members) {
  return c10::make_intrusive<StandIn>(members);
}

/// As of a card of its own.
inline c10d::VendorOffer offer_of(int rank, c10d::Vendor vendor) {
  c10d::VendorOffer offer{vendor, {}};
  offer.device[0] = static_cast<std::byte>(rank + 1);
  return offer;
}

/// Of a rank with a card of its own.
inline c10d::VendorLibrary library_of(int rank, c10d::Vendor vendor = c10d::Vendor::nccl) {
  return {offer_of(rank, vendor), backend_of};
}

}  // namespace bimetal::testing
