#pragma once
// Whether a worker gains by leases that are granted ahead, so that the parameters of one come while
// the gradients of another leave. It gains nothing if the exchange is short, or if its bottleneck
// does not have two directions (a radio, the memory of one host); gradients would then only be
// older. This is found out by trying: its leases of both kinds are compared. Pure, no clock of its
// own.

#include <cstdint>

namespace bimetal::parallel::server {

class PrefetchGain {
 public:
  /// As WorkerSpeed::observe().
  void observe(std::int64_t samples, double seconds, double compute_seconds, bool ahead);

  /// Whether to grant ahead now. Now and then it says no to a worker that gains, or yes to one that
  /// does not, to see whether that is still so.
  bool worthwhile() const noexcept;

 private:
  /// Sums over the newest leases, in which older ones count less and less.
  struct Recent {
    int leases = 0;  ///< all
    double weight = 0, samples = 0, compute = 0, exchange = 0;
    void add(double of_samples, double of_compute, double of_exchange);
    double mean_samples() const noexcept { return samples / weight; }
    /// Of a lease of so many samples.
    double seconds(double of_samples) const noexcept {
      return exchange / weight + compute / samples * of_samples;
    }
  };
  bool gains() const noexcept;

  Recent alone_, ahead_;
  int ahead_since_alone_ = 0, alone_since_trial_ = 0;
  bool warm_ = false;  ///< the first lease, which also makes memory ready, is behind it
};

}  // namespace bimetal::parallel::server
