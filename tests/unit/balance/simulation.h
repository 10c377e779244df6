#pragma once
// A simulated job: devices with the jitter that operating systems give them, in step with each
// other, their shares moved by a Balancer. Time is a number; nothing here sleeps.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/balance/balancer.h"

namespace bimetal::balance::test {

/// Uniform in [low, high), the same on every platform.
inline double uniform(std::mt19937_64& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random() >> 11) * 0x1p-53);
}

/// How a device is slowed down.
enum class Slowdown {
  None,
  Quota,      ///< like a cgroup's CPU quota: runs until it has used up its part of each period
  DutyCycle,  ///< like SIGSTOP and SIGCONT: runs in the first part of each period only
};

struct SimulatedDevice {
  double seconds_per_step = 0.0;    ///< α at full speed
  double seconds_per_sample = 0.0;  ///< β at full speed
  double noise = 0.0;               ///< each step takes 1 ± noise of that, uniformly
  Slowdown slowdown = Slowdown::None;
  double speed = 1.0;  ///< part of each period in which it may run
  double phase = 0.0;  ///< where its periods begin
  double period = 0.1;

  /// Runs `batch` samples from `start` on; returns when they are done.
  double run(double start, std::int64_t batch, std::mt19937_64& random) {
    if (batch == 0) return start;
    double work = seconds_per_step + seconds_per_sample * static_cast<double>(batch);
    work *= uniform(random, 1.0 - noise, 1.0 + noise);
    if (slowdown == Slowdown::None) return start + work;
    for (double now = start;;) {
      const double number = std::floor((now - phase) / period);
      if (number != current_period_) {
        current_period_ = number;
        used_ = 0.0;
      }
      const double begin = phase + number * period;
      const double end = begin + period;
      const double allowed = slowdown == Slowdown::Quota
                                 ? std::min(speed * period - used_, end - now)
                                 : begin + speed * period - now;
      if (work <= allowed) {
        used_ += work;
        return now + work;
      }
      work -= std::max(allowed, 0.0);
      used_ += std::max(allowed, 0.0);
      now = end + 1e-9;
    }
  }

 private:
  double current_period_ = -1.0;
  double used_ = 0.0;  ///< of the current period's quota
};

/// Samples per second that it does alone.
inline double solo_rate(SimulatedDevice device, std::int64_t batch, int steps = 400) {
  std::mt19937_64 random(99);
  double now = 0.0;
  for (int step = 0; step < steps; ++step) now = device.run(now, batch, random);
  return static_cast<double>(batch * steps) / now;
}

/// Devices in step: a step ends when the slowest has computed and all have communicated.
class SimulatedJob {
 public:
  SimulatedJob(std::vector<SimulatedDevice> devices, double communication, std::uint64_t seed)
      : devices_(std::move(devices)), communication_(communication), random_(seed) {}

  SimulatedDevice& device(int rank) { return devices_[static_cast<std::size_t>(rank)]; }
  double now() const { return now_; }

  /// One step; returns each rank's figures.
  std::vector<StepFigures> step(std::span<const std::int64_t> shares) {
    std::vector<StepFigures> figures;
    double last = now_;
    for (std::size_t r = 0; r < devices_.size(); ++r) {
      const double done = devices_[r].run(now_, shares[r], random_);
      figures.push_back({shares[r], done - now_, false});
      last = std::max(last, done);
    }
    now_ = last + communication_;
    return figures;
  }

  double sum_of_solo_rates(std::int64_t batch) const {
    double sum = 0.0;
    for (const SimulatedDevice& device : devices_) sum += solo_rate(device, batch);
    return sum;
  }

 private:
  std::vector<SimulatedDevice> devices_;
  double communication_;
  std::mt19937_64 random_;
  double now_ = 0.0;
};

}  // namespace bimetal::balance::test
