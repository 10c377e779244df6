#pragma once
// A simulated job on a machine that others use, too: heavy-tailed step times, and bursts in which
// competing processes take a part of it. Beside it an oracle that knows what nobody can know.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "unit/balance/simulation.h"

namespace bimetal::balance::test {

/// From `begin` to `end` (seconds of the job's time) steps take `factor` times as long in the mean.
struct Burst {
  double begin = 0.0, end = 0.0;
  double factor = 1.0;
  int rank = -1;  ///< of the device that it hits; -1: all of them

  bool hits(int device, double now) const {
    return (rank < 0 || rank == device) && now >= begin && now < end;
  }
};

struct DisturbedDevice {
  double alpha = 0.0, beta = 0.0;  ///< of the undisturbed steps
  double speed = 1.0;  ///< emulated slowness, which multiplies whatever disturbs by 1 / speed
};

/// Steps of such devices. `idle` ones measure shadow batches when the balancer asks for them.
class DisturbedJob {
 public:
  /// `pauses`: the part of all steps that is interrupted for long, bursts or not.
  DisturbedJob(std::vector<DisturbedDevice> devices, std::vector<Burst> bursts, double pauses,
               std::uint64_t seed)
      : devices_(std::move(devices)), bursts_(std::move(bursts)), pauses_(pauses), random_(seed) {}

  double now() const { return now_; }
  void start_at(double now) { now_ = now; }
  int ranks() const { return static_cast<int>(devices_.size()); }

  /// The mean costs of steps at this moment; without the bursts, their costs at rest.
  std::vector<Device> known_costs(bool with_bursts) const {
    std::vector<Device> costs;
    for (int r = 0; r < ranks(); ++r) {
      const auto& device = devices_[static_cast<std::size_t>(r)];
      const double factor = with_bursts ? burst_factor(r) : 1.0;
      costs.push_back({CostModel(factor * device.alpha, factor * device.beta)});
    }
    return costs;
  }

  /// Seconds that rank `r` would take now for `batch` samples.
  double seconds(int r, std::int64_t batch) {
    if (batch == 0) return 0.0;
    const auto& device = devices_[static_cast<std::size_t>(r)];
    const double work = device.alpha + device.beta * static_cast<double>(batch);
    double seconds = work * uniform(random_, 0.97, 1.03);
    // Competing processes take their time in slices, now more, now less.
    const double factor = burst_factor(r);
    if (factor > 1.0) seconds += (factor - 1.0) * work * uniform(random_, 0.4, 1.6);
    // And any step may be interrupted for long: a heavy tail from 4 ms to 1 s.
    if (uniform(random_, 0.0, 1.0) < pauses_) {
      const double pause = 0.004 / uniform(random_, 0.004, 1.0);
      seconds += pause / device.speed;
    }
    return seconds;
  }

  /// One step in lock step; `shadows` are measured beside it and hold nobody up.
  std::vector<StepFigures> step(const Shares& shares, const Shares& shadows) {
    std::vector<StepFigures> figures;
    double longest = 0.0;
    for (int r = 0; r < ranks(); ++r) {
      const auto rank = static_cast<std::size_t>(r);
      StepFigures mine{.batch = shares[rank], .compute_seconds = seconds(r, shares[rank])};
      longest = std::max(longest, mine.compute_seconds);
      if (shadows[rank] > 0 && shares[rank] == 0) {
        mine.shadow_batch = shadows[rank];
        mine.shadow_seconds = seconds(r, shadows[rank]);
      }
      figures.push_back(mine);
    }
    now_ += longest;
    return figures;
  }

 private:
  double burst_factor(int r) const {
    double factor = 1.0;
    for (const Burst& burst : bursts_) {
      if (burst.hits(r, now_)) factor = std::max(factor, burst.factor);
    }
    return factor;
  }

  std::vector<DisturbedDevice> devices_;
  std::vector<Burst> bursts_;
  double pauses_;
  std::mt19937_64 random_;
  double now_ = 0.0;
};

}  // namespace bimetal::balance::test
