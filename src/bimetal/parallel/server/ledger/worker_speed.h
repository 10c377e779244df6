#pragma once
// The time of a worker's lease: its compute time, fitted as in all-reduce mode
// (balance/cost_model.h), and the exchange with the servers, which hardly depends on the number of
// samples. They are kept apart, because a worker with few samples would look slow by the exchange
// alone, and would get even fewer. Pure, like the models that it is made of.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "bimetal/balance/cost_model.h"

namespace bimetal::parallel::server {

class WorkerSpeed {
 public:
  WorkerSpeed() = default;  ///< nothing is known
  /// `probed`: its compute time, as measured by the worker itself.
  explicit WorkerSpeed(const balance::CostModel& probed) : probed_(probed), compute_(probed) {}

  /// A lease of `samples` took `seconds`, and `compute_seconds` of these were computation. `ahead`:
  /// it was granted before the lease before it had ended; `seconds` are those since that end.
  void observe(std::int64_t samples, double seconds, double compute_seconds, bool ahead = false);

  /// A step went by without it. After many of them it is judged by its probe again: what made it
  /// too slow may be over.
  void pass_over();

  bool known() const noexcept { return compute_.known(); }
  /// Whether it has finished a lease, so that its exchange is known, too.
  bool exchanged() const noexcept { return alone_.count + ahead_.count > 0; }
  /// Expected for a lease of its newest kind, or one granted `ahead` or not; 0 while nothing is
  /// known.
  double seconds(std::int64_t samples) const noexcept { return seconds(samples, newest_ahead_); }
  double seconds(std::int64_t samples, bool ahead) const noexcept;
  /// Samples per second in leases of that many; 0 while nothing is known.
  double rate(std::int64_t samples) const noexcept;
  /// Both together, as one model. known() only.
  balance::CostModel cost() const;

 private:
  struct Exchanges {
    std::array<double, 5> newest{};  ///< each in the place of the oldest
    std::size_t count = 0;           ///< so many have there been
    void add(double seconds) { newest[count++ % newest.size()] = seconds; }
    double median() const;
  };
  double exchange(bool ahead) const;

  balance::CostModel probed_, compute_;
  Exchanges alone_, ahead_;
  bool newest_ahead_ = false;
  int steps_idle_ = 0;
};

// Whether a worker gains by leases that are granted ahead, so that the parameters of one come while
// the gradients of another leave. It gains nothing if the exchange is short, or if its bottleneck
// does not have two directions (a radio, the memory of one host); gradients would then only be
// older. This is found out by trying: its leases of both kinds are compared. Pure, no clock of its
// own.

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
    /// The seconds of a lease of so many samples.
    double seconds(double of_samples) const noexcept {
      return exchange / weight + compute / samples * of_samples;
    }
  };
  bool gains() const noexcept;

  Recent alone_, ahead_;
  int ahead_since_alone_ = 0, alone_since_trial_ = 0;
  bool warm_ = false;  ///< the first lease, which also makes memory ready, is behind it
};

// The age of gradients in steps when they change the parameters: as measured, and as expected of a
// worker's next ones. Pure. Not thread-safe.

/// No worker is given parameters predicted for later than that: gradients do not stay alike for so
/// long.
inline constexpr double kFurthestAhead = 4;

class GradientAge {
 public:
  /// `version`: that of the parameters now.
  explicit GradientAge(std::uint64_t version) : version_(version), steps_{{version, 0}} {}

  /// Gradients of `worker`, computed with parameters of version `used`, are being applied.
  void observe(int worker, std::uint64_t used);
  /// The parameters have changed by `part` of a step, and are one version newer.
  void add_update(double part);

  /// For a worker's next gradients, in steps, 0 … kFurthestAhead: the median of the newest ages. 0
  /// while nothing is known.
  double expected(int worker) const;

 private:
  struct Ages {
    std::array<double, 5> newest{};  ///< each in the place of the oldest
    std::size_t count = 0;           ///< so many have there been
  };

  std::uint64_t version_;
  std::map<std::uint64_t, double> steps_;  ///< by version: how far training was
  std::map<int, Ages> ages_;
};

}  // namespace bimetal::parallel::server
