#pragma once
// Moves the shares while the job runs. Each rank owns a Balancer and feeds it the same all-gathered
// figures, so that all ranks hold the same shares without a message of their own.

#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/balance/shares.h"

namespace bimetal::balance {

/// What one rank reports after a step.
struct StepFigures {
  std::int64_t batch = 0;      ///< samples it computed
  double compute_seconds = 0;  ///< its own compute, without waiting for others
  bool out_of_memory = false;  ///< the batch did not fit; the step is to be repeated
};

enum class Policy { Auto, Equal, Fixed };

struct BalancerOptions {
  Policy policy = Policy::Auto;
  std::vector<double> fixed_weights;  ///< for Policy::Fixed, one per rank
  std::int64_t global_batch = 0;
  /// New shares are taken only when they promise a finish at least this much sooner (hysteresis).
  double minimum_gain = 0.02;
  /// Steps whose figures are only learnt from (warm-up of caches and allocators).
  int warmup_steps = 2;
};

class Balancer {
 public:
  /// `devices` hold the probes' cost models (may be unknown) and memory caps, one per rank.
  Balancer(BalancerOptions options, std::vector<Device> devices);

  /// Shares of the next full global batch.
  const Shares& shares() const noexcept { return shares_; }

  /// Learns from one step; figures[r] is rank r's. Returns whether the shares changed. A rank that
  /// ran out of memory gets a cap of half of what it tried; the shares then change at once, under
  /// any policy. Error(OutOfMemory) naming the rank when its cap falls below 1 and no other can
  /// take its part.
  bool observe(std::span<const StepFigures> figures);

  std::span<const Device> devices() const noexcept { return devices_; }

  /// Predicted samples per second of rank r working alone on the whole global batch (or on its
  /// memory cap's worth at a time).
  double alone_rate(int rank) const;

 private:
  BalancerOptions options_;
  std::vector<Device> devices_;
  Shares shares_;
  int steps_ = 0;
};

}  // namespace bimetal::balance
