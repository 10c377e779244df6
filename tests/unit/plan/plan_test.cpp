#include "bimetal/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/plan/link_probe.h"

namespace bimetal::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kGigabit = 125e6;  // bytes per second

const Prediction& of_way(const Plan& plan, Way way) {
  return *std::ranges::find(plan.predictions, way, &Prediction::way);
}

// A convolutional network of 1.7 MB: a worker of one core beside one a quarter as fast.
PlanInput unequal_cores() {
  return {
      .workers = {{"cpu:threads=1", {0.002, 0.5e-3}}, {"cpu:threads=1,speed=0.25", {0.008, 2e-3}}},
      .link = {.latency_s = 20e-6, .bytes_per_s = 1.5e9},
      .bucket_bytes = {1'600'000, 80'000},
      .global_batch = 512};
}

// The same model on a fast GPU, with a laptop's CPU behind Gigabit Ethernet to help.
PlanInput gpu_and_cpu() {
  return {.workers = {{"cuda:0", {0.4e-3, 2e-6}}, {"cpu", {0.001, 0.3e-3}}},
          .link = {.latency_s = 200e-6, .bytes_per_s = kGigabit},
          .bucket_bytes = {1'600'000, 80'000},
          .global_batch = 512};
}

TEST(RingSeconds, FollowsTheBound) {
  const LinkSpeed link{.latency_s = 0, .bytes_per_s = 1e6};
  EXPECT_DOUBLE_EQ(ring_seconds(1'000'000, 2, link), 1.0);  // 2·1/2
  EXPECT_DOUBLE_EQ(ring_seconds(1'000'000, 4, link), 1.5);  // 2·3/4
  EXPECT_DOUBLE_EQ(ring_seconds(1'000'000, 1, link), 0.0);
  EXPECT_DOUBLE_EQ(ring_seconds(0, 4, {.latency_s = 0.01, .bytes_per_s = 1e6}), 0.06);
}

TEST(ExposedSeconds, AllButTheLastBucketHidesBehindHalfOfTheComputation) {
  PlanInput input = unequal_cores();
  input.link = {.latency_s = 0, .bytes_per_s = 1e6};
  input.bucket_bytes = {400'000, 300'000, 100'000};  // 0.4, 0.3 and 0.1 s between two
  EXPECT_NEAR(exposed_seconds(10.0, input, 2), 0.1, 1e-12);
  EXPECT_NEAR(exposed_seconds(1.0, input, 2), 0.3, 1e-12);
  EXPECT_NEAR(exposed_seconds(0.0, input, 2), 0.8, 1e-12);
  EXPECT_EQ(exposed_seconds(1.0, input, 1), 0.0);
}

TEST(ExposedByServers, TheBusiestLinkDecides) {
  PlanInput input = unequal_cores();
  input.link = {.latency_s = 0, .bytes_per_s = 1e6};
  input.bucket_bytes = {400'000, 300'000, 100'000};
  // One server's link carries the bytes of four workers: 3.2 s each way, of which backward hides 1.
  EXPECT_NEAR(exposed_by_servers(2.0, input, 4, 1), 3.2 + 0.4 + (2.8 - 1), 1e-12);
  EXPECT_NEAR(exposed_by_servers(2.0, input, 4, 4), 0.8 + 0.1, 1e-12);
  EXPECT_NEAR(exposed_by_servers(2.0, input, 4, 9), 0.8 + 0.1, 1e-12) << "a worker's own link";
  input.copies = 2;  // each gradient is sent twice, parameters come once
  EXPECT_NEAR(exposed_by_servers(2.0, input, 4, 4), 0.8 + 0.2 + (1.4 - 1), 1e-12);
  input.link.latency_s = 0.01;
  EXPECT_NEAR(exposed_by_servers(1e3, input, 4, 4), 0.81 + 1.61 / 8, 1e-12);
}

// Eight laptops on a Wi-Fi: a ring pays the latency fourteen times for each bucket, servers twice.
PlanInput eight_on_wifi() {
  PlanInput input{.workers = std::vector<PlanWorker>(8, {"cpu", {0.002, 1e-3}}),
                  .link = {.latency_s = 5e-3, .bytes_per_s = 50e6},
                  .bucket_bytes = {1'000'000, 1'000'000, 1'000'000},
                  .global_batch = 256};
  return input;
}

TEST(Plan, ServersAreChosenWhereReducingTakesLonger) {
  PlanInput input = eight_on_wifi();
  input.servers = 8;
  const Plan plan = make_plan(input);
  EXPECT_EQ(plan.chosen().way, Way::Servers);
  EXPECT_DOUBLE_EQ(plan.chosen().sent_bytes, 3e6);
  EXPECT_DOUBLE_EQ(plan.chosen().server_bytes, 3e6);
  EXPECT_DOUBLE_EQ(of_way(plan, Way::Balanced).sent_bytes, 2 * 3e6 * 7 / 8);
  ASSERT_TRUE(plan.crossover_servers);
  EXPECT_LE(*plan.crossover_servers, 8);
  EXPECT_THAT(advice(input, plan), HasSubstr("through 8 parameter servers (parallel.mode"));
}

TEST(Plan, TheServerCrossoverIsWhereTheAnswerTurns) {
  PlanInput input = eight_on_wifi();
  input.link = {.latency_s = 2e-3, .bytes_per_s = 50e6};
  input.servers = 1;
  const Plan one = make_plan(input);
  EXPECT_NE(one.chosen().way, Way::Servers);
  ASSERT_TRUE(one.crossover_servers);
  EXPECT_THAT(advice(input, one), HasSubstr("each on a link of its own"));
  input.servers = *one.crossover_servers - 1;
  ASSERT_GT(input.servers, 0);
  EXPECT_NE(make_plan(input).chosen().way, Way::Servers);
  input.servers = *one.crossover_servers;
  EXPECT_LT(of_way(make_plan(input), Way::Servers).step_s, of_way(one, Way::Balanced).step_s);
}

TEST(Plan, UnequalWorkersOnAGoodLinkShareInProportionToTheirSpeed) {
  const Plan plan = make_plan(unequal_cores());
  ASSERT_EQ(plan.predictions.size(), 4u);
  EXPECT_EQ(plan.chosen().way, Way::Balanced);
  EXPECT_NEAR(static_cast<double>(plan.chosen().shares[0]) / 512, 0.8, 0.02);
  const Prediction& equal = of_way(plan, Way::Equal);
  EXPECT_THAT(equal.shares, ElementsAre(256, 256));
  // The slow worker holds everyone up: slower than the fast one alone.
  EXPECT_NEAR(equal.compute_s, 0.008 + 256 * 2e-3, 1e-9);
  EXPECT_GT(equal.step_s, plan.predictions[0].step_s);
  EXPECT_NEAR(plan.chosen().samples_per_s, 512 / plan.chosen().step_s, 1e-6);
}

TEST(Plan, ASmallModelOnAFastGpuRunsAlone) {
  const PlanInput input = gpu_and_cpu();
  const Plan plan = make_plan(input);
  EXPECT_EQ(plan.chosen().way, Way::Alone);
  EXPECT_THAT(plan.chosen().ranks, ElementsAre(0));
  const std::string text = advice(input, plan);
  EXPECT_THAT(text, HasSubstr("Use cuda:0 alone"));
  EXPECT_THAT(text, HasSubstr("Adding cpu would slow each step by"));
}

TEST(Plan, TheLinkCrossoverIsWhereTheAnswerTurns) {
  PlanInput input = unequal_cores();
  input.workers[1] = {"cpu (other machine)", {0.002, 0.6e-3}};
  input.link.bytes_per_s = 2e6;
  input.bucket_bytes = {1'600'000};
  const Plan slow = make_plan(input);
  ASSERT_EQ(slow.chosen().way, Way::Alone);
  ASSERT_TRUE(slow.crossover_bytes_per_s);
  EXPECT_THAT(advice(input, slow), HasSubstr("exchanging 1.6 MB of gradients adds"));
  input.link.bytes_per_s = *slow.crossover_bytes_per_s;
  EXPECT_EQ(make_plan(input).chosen().way, Way::Balanced);
  EXPECT_FALSE(make_plan(input).crossover_bytes_per_s);
}

TEST(Plan, AWorkerThatOnlyHoldsTheOthersUpIsLeftOut) {
  PlanInput input = unequal_cores();
  input.workers = {{"cuda:0", {0.001, 0.1e-3}}, {"cuda:1", {0.001, 0.1e-3}}, {"cpu", {0.04, 0.05}}};
  input.link = {.latency_s = 1e-3, .bytes_per_s = 1e9};
  const Plan plan = make_plan(input);
  EXPECT_EQ(plan.chosen().way, Way::Balanced);
  EXPECT_THAT(plan.chosen().ranks, ElementsAre(0, 1));
  const std::string text = advice(input, plan);
  EXPECT_THAT(text,
              HasSubstr("Share the work over cuda:0 and cuda:1, balanced (256 : 256 samples)"));
  EXPECT_THAT(text, HasSubstr("Leave cpu out"));
}

TEST(Plan, EqualWorkersMaySplitEqually) {
  PlanInput input = unequal_cores();
  input.workers = {{"cpu", {0.002, 1e-3}}, {"cpu", {0.002, 1e-3}}};
  const std::string text = advice(input, make_plan(input));
  EXPECT_THAT(text, HasSubstr("cpu (rank 0) and cpu (rank 1)"));
  EXPECT_THAT(text, HasSubstr("An equal split would be about as fast"));
}

TEST(Plan, OneWorkerHasNothingToShare) {
  PlanInput input = unequal_cores();
  input.workers.resize(1);
  input.link = {};
  const Plan plan = make_plan(input);
  ASSERT_EQ(plan.predictions.size(), 1u);
  EXPECT_EQ(plan.chosen().way, Way::Alone);
  EXPECT_FALSE(plan.crossover_batch);
  EXPECT_THAT(advice(input, plan), HasSubstr("nothing to share"));
}

TEST(Plan, AWorkerThatCannotHoldTheModelTakesNoPart) {
  PlanInput input = unequal_cores();
  input.workers.push_back({"cpu:memory=64MiB", {}});
  const Plan plan = make_plan(input);
  EXPECT_THAT(plan.unusable, ElementsAre(2));
  for (const Prediction& prediction : plan.predictions) {
    EXPECT_THAT(prediction.ranks, Not(::testing::Contains(2)));
  }
  EXPECT_THAT(advice(input, plan), HasSubstr("cpu:memory=64MiB can't hold this model"));
  input.workers = {{"cpu:memory=64MiB", {}}};
  EXPECT_THROW(make_plan(input), Error);
}

TEST(Plan, RefusesNonsense) {
  PlanInput input = unequal_cores();
  input.global_batch = 0;
  EXPECT_THROW(make_plan(input), Error);
  input = unequal_cores();
  input.link = {};
  EXPECT_THROW(make_plan(input), Error);
  EXPECT_THROW(make_plan({}), Error);
}

TEST(PlanText, UnitsFitTheSize) {
  EXPECT_EQ(seconds_text(83e-6), "83 µs");
  EXPECT_EQ(seconds_text(0.0123), "12.3 ms");
  EXPECT_EQ(seconds_text(1.25), "1.25 s");
  EXPECT_EQ(link_text(117.5e6), "940 Mbit/s");
  EXPECT_EQ(link_text(3.125e9), "25.0 Gbit/s");
}

// Between devices bytes go through page-locked memory of their hosts.
TEST(HostCopies, LengthenWhatGoesOverALink) {
  const LinkSpeed link{.latency_s = 10e-6, .bytes_per_s = 1e9};
  const HostCopies card{.latency_s = 5e-6, .out_s_per_byte = 1 / 25e9, .in_s_per_byte = 1 / 50e9};
  const auto same = with_copies(link, {}, {});
  EXPECT_DOUBLE_EQ(same.latency_s, link.latency_s);
  EXPECT_DOUBLE_EQ(same.bytes_per_s, link.bytes_per_s);
  const auto out = with_copies(link, card, {}), in = with_copies(link, {}, card);
  EXPECT_DOUBLE_EQ(out.latency_s, 15e-6);
  EXPECT_DOUBLE_EQ(1 / out.bytes_per_s, 1 / 1e9 + 1 / 25e9);
  EXPECT_DOUBLE_EQ(1 / in.bytes_per_s, 1 / 1e9 + 1 / 50e9);

  for (const int ranks : {2, 5}) {
    std::vector<HostCopies> all(static_cast<std::size_t>(ranks));
    EXPECT_DOUBLE_EQ(with_copies(link, all).bytes_per_s, link.bytes_per_s);
    all.back() = card;  // the others wait for the slowest
    const auto slower = with_copies(link, all);
    constexpr double kBytes = 1e8;
    EXPECT_NEAR(ring_seconds(kBytes, ranks, slower),
                ring_seconds(kBytes, ranks, link) + 2 * 5e-6 + kBytes / 25e9 + kBytes / 50e9,
                1e-12);
  }
}

}  // namespace
}  // namespace bimetal::plan
