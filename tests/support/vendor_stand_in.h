#pragma once
// A c10d::Backend over the fabric in the place of NCCL, for islands.

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::testing {

/// An island's vendor library, on tensors whose memory the host can read.
class StandIn final : public ::c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

  /// Adds its collective calls to `calls`. Collective.
  explicit StandIn(const comm::Group& members, std::shared_ptr<std::atomic<int>> calls = nullptr)
      : Backend(members.rank(), members.size()),
        members_(comm::group_of_its_own(members)),
        calls_(std::move(calls)) {}

  const std::string getBackendName() const override { return "stand-in"; }

  WorkPtr reduce(std::vector<at::Tensor>& tensors, const ::c10d::ReduceOptions& options) override {
    const auto data = parallel::tensor_buffer(on_cpu(tensors.front()));
    const auto by = Deadline::after(options.timeout);
    const bool max = options.reduceOp == ::c10d::ReduceOp::MAX;
    return over(members_.reduce(data, static_cast<int>(options.rootRank),
                                max ? comm::ReduceOp::max : comm::ReduceOp::sum, by));
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const ::c10d::AllreduceOptions& options) override {
    const bool max = options.reduceOp == ::c10d::ReduceOp::MAX;
    return over(members_.all_reduce(parallel::tensor_buffer(on_cpu(tensors.front())),
                                    max ? comm::ReduceOp::max : comm::ReduceOp::sum,
                                    Deadline::after(options.timeout)));
  }

  WorkPtr _allgather_base(at::Tensor& all, at::Tensor& own,
                          const ::c10d::AllgatherOptions& options) override {
    return over(members_.all_gather(parallel::tensor_buffer(on_cpu(own)),
                                    parallel::tensor_buffer(on_cpu(all)), equal_counts(own),
                                    Deadline::after(options.timeout)));
  }

  WorkPtr _reduce_scatter_base(at::Tensor& own, at::Tensor& all,
                               const ::c10d::ReduceScatterOptions& options) override {
    return over(members_.reduce_scatter(parallel::tensor_buffer(on_cpu(all)),
                                        parallel::tensor_buffer(on_cpu(own)), equal_counts(own),
                                        comm::ReduceOp::sum, Deadline::after(options.timeout)));
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

  /// By which the own part may lie in the whole.
  std::vector<std::size_t> equal_counts(const at::Tensor& own) const {
    return std::vector(static_cast<std::size_t>(members_.size()),
                       static_cast<std::size_t>(own.numel()));
  }

  static at::Tensor on_cpu(const at::Tensor& tensor) {
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.scalar_type());
  }

  struct Over final : ::c10d::Work {
    Over() { finish(); }
  };
  WorkPtr over(const comm::Work& work) {
    if (calls_) ++*calls_;
    work.wait();
    return c10::make_intrusive<Over>();
  }

  comm::Group members_;
  std::shared_ptr<std::atomic<int>> calls_;
  WorkPtr last_;
};

/// Takes calls, and is never through with any until it is given up; or refuses them.
class Stuck final : public ::c10d::Backend {
 public:
  enum class How { later, in_the_call, refusing };

  Stuck(const comm::Group& members, How how) : Backend(members.rank(), members.size()), how_(how) {}

  const std::string getBackendName() const override { return "stuck"; }
  c10::intrusive_ptr<::c10d::Work> send(std::vector<at::Tensor>&, int, int) override {
    return called();
  }
  c10::intrusive_ptr<::c10d::Work> recv(std::vector<at::Tensor>&, int, int) override {
    return called();
  }
  c10::intrusive_ptr<::c10d::Work> allreduce(std::vector<at::Tensor>&,
                                             const ::c10d::AllreduceOptions&) override {
    return called();
  }
  c10::intrusive_ptr<::c10d::Work> _allgather_base(at::Tensor&, at::Tensor&,
                                                   const ::c10d::AllgatherOptions&) override {
    return called();
  }
  c10::intrusive_ptr<::c10d::Work> _reduce_scatter_base(
      at::Tensor&, at::Tensor&, const ::c10d::ReduceScatterOptions&) override {
    return called();
  }
  void abort() override { *aborted_ = true; }

  bool was_called() const { return called_; }
  bool was_aborted() const { return *aborted_; }

 private:
  struct Never final : ::c10d::Work {
    explicit Never(std::shared_ptr<std::atomic<bool>> aborted) : given_up(std::move(aborted)) {}
    bool isCompleted() override { return *given_up; }
    bool wait(std::chrono::milliseconds) override { throw std::runtime_error("aborted"); }
    std::shared_ptr<std::atomic<bool>> given_up;
  };

  c10::intrusive_ptr<::c10d::Work> called() {
    called_ = true;
    if (how_ == How::refusing) throw std::runtime_error("no such card");
    while (how_ == How::in_the_call && !*aborted_)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return c10::make_intrusive<Never>(aborted_);
  }

  const How how_;
  std::atomic<bool> called_{false};
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
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
