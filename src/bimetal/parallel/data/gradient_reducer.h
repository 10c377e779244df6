#pragma once
// Sums gradients over the ranks, bucket by bucket, while backward still computes the next ones.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/device/staging.h"
#include "bimetal/parallel/data/bucket.h"
#include "bimetal/parallel/data/bucket_exchange.h"
#include "bimetal/parallel/data/bucket_plan.h"
#include "bimetal/parallel/data/gradient_hooks.h"

namespace bimetal::parallel {

/// Where reduced gradients live.
enum class GradientHome {
  automatic,  ///< bucket on the CPU, tensor on an accelerator
  bucket,     ///< grad() shares the bucket's memory: nothing is copied back. CPU only
  tensor,     ///< grad() stays where backward put it; its bucket is a copy on the host
};

struct ReducerOptions {
  std::size_t first_bucket_bytes = 1u << 20;
  std::size_t bucket_bytes = 25u << 20;
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  ///< of each bucket
  GradientHome home = GradientHome::automatic;
  comm::CompressedAllReduceOptions compression = {};  ///< of the buckets on the wire
  std::shared_ptr<c10d::Island> island = nullptr;     ///< sums the buckets, uncompressed
};

/// One step is begin(), any number of plain backward passes (gradients add up locally), at most one
/// reduce_during(), finish(). Ranks may differ in what they call between begin and finish: each
/// sends every bucket exactly once, in the order of the buckets, zeros where it has no gradient.
/// Use from one thread; backward itself may use several. Making one is collective.
class GradientReducer {
 public:
  /// `parameters`: leaves that require gradients, all on one device, of types the fabric carries.
  /// Error(InvalidArgument) for an island together with compression.
  GradientReducer(std::vector<torch::Tensor> parameters, comm::Group group, ReducerOptions options);

  /// Drops all gradients and expects new ones.
  void begin();

  /// Runs `backward`, which must be the step's last pass, and sends each bucket as soon as its
  /// gradients are there. When it throws, the rest is left to finish().
  void reduce_during(const std::function<void()>& backward);

  /// Sends what has not been sent, waits for every sum and puts it into the parameters' grad();
  /// where no rank had a gradient, it stays undefined. Rethrows the fabric's errors.
  void finish();

  /// As BucketExchange has them.
  std::vector<comm::NamedValues> error_feedback() { return exchange_.error_feedback(); }
  bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) {
    return exchange_.set_error_feedback(std::move(state), steps);
  }
  const ExchangeSpan& times() const noexcept { return exchange_.times(); }

 private:
  struct Place {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  void make_buckets(comm::Group group);
  std::vector<torch::Tensor> make_memory(const std::vector<BucketPlan>& plans, comm::Group group);
  std::vector<torch::Tensor> make_device_memory(const std::vector<BucketPlan>& plans) const;
  void compress_buckets();
  void on_gradient(std::size_t parameter);
  void take(std::size_t parameter);
  void take_missing();
  void deliver(const Bucket& bucket);

  std::vector<torch::Tensor> parameters_;
  ReducerOptions options_;
  torch::Device device_;
  device::HostStaging staging_;
  device::CopyMark returned_;  ///< the last step's copies out of the buckets
  bool reducing_ = false;      ///< written only while no backward runs

  std::mutex mutex_;  ///< guards buckets_ and exchange_ against several threads of one backward
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  ///< of each parameter
  BucketExchange exchange_;

  GradientHooks hooks_;  ///< last: its callbacks use all of the above
};

}  // namespace bimetal::parallel
