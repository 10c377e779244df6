#pragma once
// The exchange of one step's buckets through the fabric.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/work.h"
#include "bimetal/device/staging.h"
#include "bimetal/parallel/exchange_span.h"

namespace bimetal::parallel {

/// Sums buckets over the ranks. They may be offered in any order; they are sent in the order of
/// their indices, which is the same on every rank, as the fabric asks. Not thread-safe.
class BucketExchange {
 public:
  /// `timeout` bounds each bucket's sum. With `island` buckets lie on the device and are summed by
  /// it in the group's place; nothing is compressed then.
  BucketExchange(comm::Group group, std::chrono::milliseconds timeout,
                 std::shared_ptr<c10d::Island> island = nullptr);

  /// Compresses bucket i's matrices[i] from now on; what lies behind them is summed exactly.
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

  /// Of this step.
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
