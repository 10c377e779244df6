#pragma once
// A c10d::Backend over the fabric in the place of NCCL, for islands.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::testing {

/// What an island asks of its vendor library, on tensors whose memory the host can read.
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

  void abort() override { members_.abort("the island was given up"); }

 private:
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

}  // namespace bimetal::testing
