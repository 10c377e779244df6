#include <gtest/gtest.h>

#include "bimetal/parallel/server/ledger/worker_speed.h"

namespace bimetal::parallel::server {
namespace {

constexpr std::int64_t kSamples = 8;

/// A worker that takes leases as it is told to, and what they take it.
struct Worker {
  double compute = 0.1, alone = 2.1, ahead = 1.0;
  PrefetchGain gain{};
  int leases_alone = 0, leases_ahead = 0;

  void compute_leases(int count) {
    for (int i = 0; i < count; ++i) {
      const bool now = gain.worthwhile();
      ++(now ? leases_ahead : leases_alone);
      gain.observe(kSamples, now ? ahead : alone, compute, now);
    }
  }
};

TEST(PrefetchGain, IsTriedWhereTheExchangeIsLongAndKeptWhereItPays) {
  Worker worker;
  worker.compute_leases(3);
  EXPECT_EQ(worker.leases_ahead, 0) << "nothing is known yet";
  worker.compute_leases(100);
  EXPECT_EQ(worker.leases_ahead, 100);
}

TEST(PrefetchGain, IsNotEvenTriedWhereTheExchangeIsShort) {
  Worker worker{.compute = 2.0};
  worker.compute_leases(1000);
  EXPECT_EQ(worker.leases_ahead, 0);
}

TEST(PrefetchGain, IsGivenUpWhereItDoesNotPay) {
  Worker worker{.ahead = 2.05};
  worker.compute_leases(100);
  EXPECT_LE(worker.leases_ahead, 10);
  EXPECT_FALSE(worker.gain.worthwhile());
}

TEST(PrefetchGain, IsReconsidered) {
  Worker worker{.ahead = 2.05};
  worker.compute_leases(150);
  worker.ahead = 1.0;  // what was in the way is gone
  worker.compute_leases(300);
  EXPECT_TRUE(worker.gain.worthwhile());
  worker.alone = 0.11, worker.ahead = 0.1;  // the link has become fast
  worker.compute_leases(500);
  EXPECT_FALSE(worker.gain.worthwhile());
}

// Leases that were granted before it said no still come in.
TEST(PrefetchGain, WaitsForALeaseAloneBeforeItGoesOn) {
  Worker worker;
  while (worker.leases_ahead < 50 || worker.gain.worthwhile()) worker.compute_leases(1);
  for (int i = 0; i < 2; ++i) worker.gain.observe(kSamples, 1.0, 0.1, /*ahead=*/true);
  EXPECT_FALSE(worker.gain.worthwhile());
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(worker.gain.worthwhile());
    worker.gain.observe(kSamples, 2.1, 0.1, /*ahead=*/false);
  }
  EXPECT_TRUE(worker.gain.worthwhile());
}

// A worker that is the first has whole steps for itself until the others come.
TEST(PrefetchGain, ComparesLeasesOfOneSize) {
  PrefetchGain gain;
  for (int i = 0; i < 3; ++i) gain.observe(8 * kSamples, 2.8, 0.8, /*ahead=*/false);
  for (int i = 0; i < 8; ++i) gain.observe(kSamples, 1.1, 0.1, /*ahead=*/true);
  EXPECT_TRUE(gain.worthwhile());
}

// One processor may both compute and send.
TEST(PrefetchGain, CountsWhatOverlapCostsTheComputation) {
  Worker worker;
  worker.compute_leases(3);
  for (int i = 0; i < 8; ++i) worker.gain.observe(kSamples, 2.0, 1.9, /*ahead=*/true);
  EXPECT_FALSE(worker.gain.worthwhile());
}

TEST(GradientAge, IsWhatHasBeenAppliedMeanwhileInSteps) {
  GradientAge age(7);
  EXPECT_EQ(age.expected(0), 0) << "nothing is known";
  age.add_update(0.25);
  age.add_update(0.75);
  age.add_update(0.5);
  age.observe(0, 8);
  EXPECT_DOUBLE_EQ(age.expected(0), 1.25);
  EXPECT_EQ(age.expected(1), 0);
}

TEST(GradientAge, OneLongPauseDoesNotCount) {
  GradientAge age(0);
  age.observe(0, 0);
  age.observe(0, 0);
  for (int i = 0; i < 50; ++i) age.add_update(1);
  age.observe(0, 0);
  EXPECT_EQ(age.expected(0), 0);
}

TEST(GradientAge, NewAgesReplaceOldOnesAndAreBounded) {
  GradientAge age(0);
  for (int i = 0; i < 5; ++i) age.observe(0, 0);
  for (int i = 0; i < 50; ++i) age.add_update(1);
  for (int i = 0; i < 3; ++i) age.observe(0, 0);
  EXPECT_EQ(age.expected(0), kFurthestAhead);
}

TEST(GradientAge, VersionsThatItDoesNotKnowTellNothing) {
  GradientAge age(10);
  age.observe(0, 3);
  EXPECT_EQ(age.expected(0), 0);
  for (int i = 0; i < 5000; ++i) age.add_update(1);
  age.observe(0, 10);  // too long ago to be followed
  EXPECT_EQ(age.expected(0), 0);
}

}  // namespace
}  // namespace bimetal::parallel::server
