// How a whole job behaves under the balancer: settling, noise, changes of speed, CPU quotas.

#include <gtest/gtest.h>

#include <numeric>

#include "bimetal/balance/balancer.h"
#include "unit/balance/simulation.h"

namespace bimetal::balance {
namespace {

using test::SimulatedDevice;
using test::SimulatedJob;
using test::Slowdown;
using test::uniform;

constexpr std::int64_t kBatch = 512;

BalancerOptions options() {
  BalancerOptions options;
  options.global_batch = kBatch;
  return options;
}

SimulatedDevice simple_device(double seconds_per_sample, double noise) {
  SimulatedDevice device;
  device.seconds_per_sample = seconds_per_sample;
  device.noise = noise;
  return device;
}

/// Probes of `devices`, each wrong by up to a quarter.
std::vector<Device> probed(const std::vector<SimulatedDevice>& devices, std::mt19937_64& random) {
  std::vector<Device> probes;
  for (const SimulatedDevice& device : devices) {
    const double wrong = uniform(random, 0.8, 1.25) / device.speed;
    probes.push_back(
        {CostModel(device.seconds_per_step * wrong, device.seconds_per_sample * wrong), kNoCap});
  }
  return probes;
}

TEST(Settling, NoiseNeitherMovesTheSharesMuchNorLeavesThemWrong) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector devices{simple_device(0.6e-3, 0.1), simple_device(2.4e-3, 0.1)};
    const std::vector<Device> truth{{CostModel(0, 0.6e-3)}, {CostModel(0, 2.4e-3)}};
    SimulatedJob job(devices, 0.0, seed);
    Balancer balancer(options(), probed(devices, random));
    int early = 0, late = 0;
    double finish = 0;
    for (int step = 0; step < 500; ++step) {
      if (balancer.observe(job.step(balancer.shares()))) ++(step < 100 ? early : late);
      finish += finish_seconds(truth, balancer.shares()) / 500;
    }
    EXPECT_LE(early, 20) << seed;  // from a wrong probe to the balance
    EXPECT_LE(late, 12) << seed;
    const double best = finish_seconds(truth, balanced_shares(truth, kBatch));
    EXPECT_LT(finish, 1.03 * best) << seed;
  }
}

/// Runs until settled, changes the speed of rank 1 by `factor`, and checks that the shares have
/// come within 10 % of the new optimum after 15 more steps.
void expect_to_follow(double factor, double noise, std::uint64_t seed) {
  SCOPED_TRACE(::testing::Message()
               << "factor " << factor << ", noise " << noise << ", seed " << seed);
  std::mt19937_64 random(seed);
  const std::vector devices{simple_device(0.6e-3, noise), simple_device(2.4e-3, noise)};
  SimulatedJob job(devices, 0.0, seed);
  Balancer balancer(options(), probed(devices, random));
  for (int step = 0; step < 200; ++step) balancer.observe(job.step(balancer.shares()));
  job.device(1).seconds_per_sample *= factor;
  for (int step = 0; step < 15; ++step) balancer.observe(job.step(balancer.shares()));
  const std::vector<Device> truth{{CostModel(0, 0.6e-3)}, {CostModel(0, 2.4e-3 * factor)}};
  const Shares best = balanced_shares(truth, kBatch);
  for (std::size_t r = 0; r < 2; ++r) {
    const auto wanted = static_cast<double>(best[r]);
    EXPECT_NEAR(static_cast<double>(balancer.shares()[r]), wanted, 0.1 * wanted + 1.0);
  }
}

TEST(Settling, FollowsAChangeOfSpeedWithinFifteenSteps) {
  for (const double factor : {0.5, 2.0, 0.25, 4.0}) {
    for (const double noise : {0.0, 0.02, 0.05}) {
      for (std::uint64_t seed = 0; seed < 10; ++seed) expect_to_follow(factor, noise, seed);
    }
  }
}

struct Outcome {
  double efficiency = 0;
  double changes = 0;  ///< of the shares, in 300 steps
};

/// Devices at `speeds` whose steps take about `step_seconds` together.
Outcome run_job(const std::vector<double>& speeds, Slowdown slowdown, double step_seconds,
                std::uint64_t seed) {
  std::mt19937_64 random(seed * 77 + 1);
  const double total = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<SimulatedDevice> devices;
  for (const double speed : speeds) {
    SimulatedDevice device = simple_device(step_seconds * total / kBatch, 0.03);
    device.speed = speed;
    device.slowdown = speed < 1.0 ? slowdown : Slowdown::None;
    device.phase = uniform(random, 0.0, 0.1);
    devices.push_back(device);
  }
  constexpr int kSteps = 300;
  SimulatedJob job(devices, /*communication=*/0.003, seed);
  Balancer balancer(options(), probed(devices, random));
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    if (balancer.observe(job.step(balancer.shares()))) ++outcome.changes;
  }
  outcome.efficiency = kBatch * kSteps / job.now() / job.sum_of_solo_rates(kBatch);
  return outcome;
}

Outcome mean_outcome(const std::vector<double>& speeds, Slowdown slowdown, double step_seconds) {
  constexpr int kSeeds = 12;
  Outcome mean;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Outcome outcome = run_job(speeds, slowdown, step_seconds, seed);
    mean.efficiency += outcome.efficiency / kSeeds;
    mean.changes += outcome.changes / kSeeds;
  }
  return mean;
}

const std::vector<double> kOneAndAQuarter = {1.0, 0.25};
const std::vector<double> kThree = {0.8, 0.4, 0.2};

// 3 ms of communication in steps of 300 ms alone cost 1 %.
TEST(Settling, IsEfficientUnderCpuQuotas) {
  EXPECT_GE(mean_outcome(kOneAndAQuarter, Slowdown::Quota, 0.3).efficiency, 0.96);
  EXPECT_GE(mean_outcome(kOneAndAQuarter, Slowdown::Quota, 0.15).efficiency, 0.94);
  EXPECT_GE(mean_outcome(kThree, Slowdown::Quota, 0.6).efficiency, 0.96);
  EXPECT_GE(mean_outcome(kThree, Slowdown::Quota, 0.3).efficiency, 0.94);
}

// A device seems several times as fast just below its sustainable share: the hardest case.
TEST(Settling, DoesNotSwingWhereStepsAreAsShortAsTheQuotasPeriod) {
  const Outcome outcome = mean_outcome(kThree, Slowdown::Quota, 0.15);
  EXPECT_GE(outcome.efficiency, 0.92);
  EXPECT_LE(outcome.changes, 45);
}

TEST(Settling, IsEfficientUnderDutyCycles) {
  EXPECT_GE(mean_outcome(kOneAndAQuarter, Slowdown::DutyCycle, 0.3).efficiency, 0.96);
  EXPECT_GE(mean_outcome(kThree, Slowdown::DutyCycle, 0.3).efficiency, 0.94);
  EXPECT_GE(mean_outcome(kThree, Slowdown::DutyCycle, 0.6).efficiency, 0.95);
}

}  // namespace
}  // namespace bimetal::balance
