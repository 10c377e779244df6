#pragma once
// Buckets of gradients: flat memory that is summed in one operation. Which gradients travel
// together is a pure function of the parameters' sizes and types, so that all ranks get the same
// buckets, whatever their devices. The fabric exchanges one step's buckets.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/work.h"
#include "bimetal/device/staging.h"
#include "bimetal/parallel/parameter_store.h"

namespace bimetal::parallel {

struct ParameterSize {
  torch::ScalarType dtype = torch::kFloat32;
  std::int64_t count = 0;  ///< elements

  std::size_t bytes() const;
};

struct BucketPlan {
  struct Slot {
    std::size_t parameter = 0;  ///< index into the list that was planned
    std::int64_t offset = 0;    ///< first element in the bucket
    std::int64_t count = 0;
  };

  torch::ScalarType dtype = torch::kFloat32;
  std::vector<Slot> slots;  ///< in the order in which backward is expected to fill them
  std::int64_t count = 0;   ///< elements of all slots together
};

/// Backward yields gradients roughly in reverse order of registration, so parameters are taken in
/// that order, each type into buckets of its own. A bucket closes once it holds `first_bytes` (the
/// first of its type) or `later_bytes`. It may exceed that by its last gradient. That is better
/// than holding back a large one until the many small ones behind it are there. Buckets are listed
/// in the order in which they are expected to fill. Every parameter is in exactly one bucket.
std::vector<BucketPlan> plan_buckets(std::span<const ParameterSize> parameters,
                                     std::size_t first_bytes, std::size_t later_bytes);

/// Holds the gradients of plan.slots one after the other, each in row-major order whatever its
/// tensor's strides, and behind them one element per slot that is 1 where this rank has a gradient.
/// After the sum such an element is positive exactly if some rank had one. Not thread-safe.
class Bucket {
 public:
  /// `flat` is memory of elements(plan) elements of plan.dtype: on the host, where the fabric takes
  /// it, or on the device, for an island. The gradients' shapes are taken from `parameters`.
  Bucket(BucketPlan plan, const std::vector<torch::Tensor>& parameters, torch::Tensor flat);

  /// Elements of flat(): those of the gradients and one per slot.
  static std::int64_t elements(const BucketPlan& plan) {
    return plan.count + static_cast<std::int64_t>(plan.slots.size());
  }

  const std::vector<BucketPlan::Slot>& slots() const noexcept { return plan_.slots; }
  const torch::Tensor& flat() const noexcept { return flat_; }

  /// The slot's gradient, shaped like its parameter; shares the bucket's memory.
  const torch::Tensor& view(std::size_t slot) const { return views_[slot]; }

  /// The gradients as matrices, one per slot, of a parameter's first dimension and all the others;
  /// vectors have one row. The element behind them in flat() counts ranks and must stay exact.
  std::vector<comm::Matrix> matrices() const;

  /// Whether this rank has a gradient for the slot; otherwise it adds 0 there.
  void note(std::size_t slot, bool used) { used_here_[slot] = used ? 1 : 0; }
  /// Once all slots have been noted: flat() may be summed.
  void close();

  /// After the sum: for each slot, whether any rank had a gradient for it. On a device that is
  /// waited for only where this rank lacks one.
  std::vector<bool> used_by_any() const;

 private:
  bool all_used_here() const;

  BucketPlan plan_;
  torch::Tensor flat_;
  torch::Tensor used_;  ///< the tail of flat_
  std::vector<torch::Tensor> views_;
  std::vector<double> used_here_;  ///< 0 or 1 per slot
};

/// Sums buckets over the ranks. They may be offered in any order; they are sent in the order of
/// their indices, which is the same on every rank, as the fabric asks. Not thread-safe.
class BucketExchange {
 public:
  /// `timeout` bounds each bucket's sum. With `island` buckets lie on the device and are summed by
  /// it in the group's place; nothing is compressed then.
  BucketExchange(comm::Group group, std::chrono::milliseconds timeout,
                 std::shared_ptr<c10d::Island> island = nullptr);

  /// Compresses bucket i's matrices[i] from now on; the elements behind them are summed exactly.
  void compress(comm::CompressedAllReduceOptions options,
                std::vector<std::vector<comm::Matrix>> matrices);

  /// comm::CompressedAllReduce::whole_state(), empty where nothing is compressed. Collective,
  /// between steps.
  std::vector<comm::NamedValues> error_feedback();

  /// Goes on with such a state after `steps` steps. False, and nothing is changed, if it is of
  /// other buckets. The same on all ranks, between steps.
  bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps);

  /// Starts a step of `bucket_count` buckets.
  void begin(std::size_t bucket_count);

  /// Bucket `index` may be sent once `copied` is passed. Its memory is kept alive until it has
  /// been, and is summed in place; it must not be touched before wait(index) has returned.
  void offer(std::size_t index, torch::Tensor flat, device::CopyMark copied);

  /// Sends the buckets whose turn has come. Never blocks; a failure is kept for wait().
  void send_ready();

  /// Blocks until bucket `index` holds the sum, and meanwhile sends later ones as they get ready.
  /// All buckets must have been offered. Rethrows the fabric's errors.
  void wait(std::size_t index);

  /// `then` is called by a wait() of this step, once all buckets have been sent.
  void when_sent(std::function<void()> then) { when_sent_ = std::move(then); }

  /// The times of this step.
  const ExchangeSpan& times() const noexcept { return span_; }

 private:
  struct Transfer {
    torch::Tensor flat;  ///< undefined until offered
    device::CopyMark copied;
    comm::Work work;
  };

  void send(Transfer& transfer);
  std::size_t compressed_count(std::size_t index) const;
  comm::Work sum(std::size_t index, const torch::Tensor& flat);

  comm::Group group_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<c10d::Island> island_;
  std::optional<comm::CompressedAllReduce> compressed_;
  std::vector<std::vector<comm::Matrix>> matrices_;  ///< of each bucket, where compressed
  std::int64_t step_ = 0;                            ///< steps begun before this one
  std::vector<Transfer> transfers_;
  std::size_t sent_ = 0;  ///< transfers_ before this one are under way or done
  std::exception_ptr send_error_;
  std::function<void()> when_sent_;
  ExchangeSpan span_;
};

}  // namespace bimetal::parallel
