#pragma once
// Exchanges flat tensors of unequal parts between ranks, on any device.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"

namespace bimetal::parallel::shard {

/// One exchange in flight; wait() ends it, where it is due. Move-only in effect: wait once.
class Exchange {
 public:
  Exchange() = default;
  /// `then` copies what has arrived to where it belongs.
  Exchange(comm::Work work, torch::Tensor host, torch::Tensor target)
      : work_(std::move(work)), host_(std::move(host)), target_(std::move(target)) {}
  /// Rethrows the fabric's errors.
  void wait();
  const comm::Work& work() const noexcept { return work_; }
  /// Whether it has arrived, for which it is waited at most until then.
  bool arrives_by(Deadline deadline) const { return work_.wait_until(deadline); }

 private:
  comm::Work work_;
  torch::Tensor host_, target_;  ///< defined where they are not the same memory
};

/// `flat`, of all ranks' counts, gets each rank's `own` part, which becomes of its type. On the CPU
/// nothing is copied meanwhile, but for that; both must live until the end.
Exchange gather_parts(comm::Group& group, const torch::Tensor& own, const torch::Tensor& flat,
                      const std::vector<std::size_t>& counts, Deadline deadline);

/// `own`, a part of `flat` or memory of its own, gets the sum over the ranks of what they have in
/// its place; the rest of `flat` is scratch afterwards.
Exchange reduce_parts(comm::Group& group, const torch::Tensor& flat, const torch::Tensor& own,
                      const std::vector<std::size_t>& counts, Deadline deadline);

}  // namespace bimetal::parallel::shard
