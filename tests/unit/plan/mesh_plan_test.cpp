#include "bimetal/plan/mesh/mesh_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using ::testing::HasSubstr;

/// Every pipeline of single devices: each order of each part of them, each cut, each number of
/// micro-batches that divides the batch.
double best_of_all(const MeshInput& input, const Cluster& cluster) {
  double best = std::numeric_limits<double>::infinity();
  const auto units = input.facts.front().units.size();
  std::vector<int> order;
  const auto try_cuts = [&](auto&& self, MeshChoice& choice, std::size_t stage) -> void {
    const auto stages = choice.stages.size();
    if (stage + 1 == stages) {
      choice.stages[stage].pieces[0].end = units;
      best = std::min(best, simulated({input, cluster}, choice).step_s);
      return;
    }
    auto& own = choice.stages[stage].pieces[0];
    for (auto end = own.begin + 1; end + (stages - stage - 1) <= units; ++end) {
      own.end = end;
      choice.stages[stage + 1].pieces[0].begin = end;
      self(self, choice, stage + 1);
    }
  };
  const auto try_orders = [&](auto&& self) -> void {
    if (order.size() > 1) {
      for (int micro_batches = 1; micro_batches <= input.global_batch; ++micro_batches) {
        MeshChoice choice;
        choice.scheme = Scheme::Pipeline;
        choice.micro_batches = micro_batches;
        for (const int device : order) {
          choice.stages.push_back(
              {.devices = {device}, .samples = {input.global_batch}, .pieces = {{0, 0}}});
        }
        for (const auto kind :
             {parallel::schedule::Kind::one_f_one_b, parallel::schedule::Kind::zero_bubble}) {
          choice.schedule = kind;
          try_cuts(try_cuts, choice, 0);
        }
      }
    }
    for (int device = 0; device < cluster.size(); ++device) {
      if (std::ranges::find(order, device) != order.end()) continue;
      order.push_back(device);
      self(self);
      order.pop_back();
    }
  };
  try_orders(try_orders);
  for (int device = 0; device < cluster.size(); ++device) {
    best = std::min(best, choose_data({input, cluster}, {device}, {})->step_s);
  }
  return best;
}

TEST(MeshPlan, IsWithinFivePercentOfTheBestOfAllPlans) {
  constexpr double kMuch = 64 * kGiB;
  const auto input = input_of(unequal_units(), 12);
  for (const auto& link : {kFastLink, kGigabitLink, LinkSpeed{1e-3, 1e9}}) {
    for (const auto& speeds :
         std::vector<std::vector<double>>{{1, 1, 1}, {3, 1, 1}, {4, 2, 1}, {1, 5}}) {
      const auto cluster = apart(speeds, std::vector<double>(speeds.size(), kMuch), link);
      const auto plan = plan_mesh({input, cluster});
      ASSERT_FALSE(plan.best.empty());
      EXPECT_LE(plan.best.front().step_s, 1.05 * best_of_all(input, cluster))
          << describe(cluster, plan.best.front()) << " at " << link.bytes_per_s;
    }
  }
}

TEST(MeshPlan, SaysThatOneDeviceAloneIsFaster) {
  const auto cluster = apart({20, 1}, {24 * kGiB, 8 * kGiB}, {1e-3, 12.5e6});
  const auto plan = plan_mesh({input_of(unequal_units(), 8), cluster});
  EXPECT_EQ(plan.best.front().scheme, Scheme::Alone);
  EXPECT_THAT(mesh_advice(cluster, plan),
              HasSubstr("The whole fits on a, and no way to share it is faster."));
  ASSERT_GT(plan.best.size(), 1u);
  EXPECT_THAT(plan.best[1].reason, HasSubstr("% slower"));
}

TEST(MeshPlan, CutsAModelThatFitsOnNeitherByWhatEachHas) {
  // 1.6 GB of states and more: nobody has it alone.
  const auto model =
      transformer_facts({.layers = 12, .width = 768, .context = 512, .vocabulary = 8192});
  const double whole = 16 * static_cast<double>(model.elements());
  const auto cluster = apart({2, 1}, {0.85 * whole, 0.5 * whole}, kGigabitLink);
  const auto plan = plan_mesh({input_of(model, 16), cluster});
  ASSERT_FALSE(plan.best.empty());
  const auto& best = plan.best.front();
  EXPECT_EQ(best.scheme, Scheme::Pipeline);
  ASSERT_EQ(best.stages.size(), 2u);
  ASSERT_EQ(best.peak_bytes.size(), 2u);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_LE(best.peak_bytes[s], cluster.device(best.stages[s].devices[0]).memory_bytes);
  }
  // A mesh that fits on nobody is among the others, with the memory that it lacks.
  const auto alone = std::ranges::find(plan.others, Scheme::Alone, &MeshChoice::scheme);
  ASSERT_NE(alone, plan.others.end());
  EXPECT_THAT(alone->reason, HasSubstr("a lacks"));
}

TEST(MeshPlan, StatesGoToADiskWhereNoStagesFitElse) {
  const auto model =
      transformer_facts({.layers = 12, .width = 768, .context = 512, .vocabulary = 8192});
  auto input = input_of(model, 16);
  const auto best_with = [&](double bytes, bool offloads) {
    input.offloads = offloads;
    return plan_mesh({input, apart({1, 1}, {bytes, bytes}, kGigabitLink)}).best;
  };
  // The least that two stages need which have their states in memory.
  double bytes = 16 * static_cast<double>(model.elements());
  while (!best_with(0.95 * bytes, false).empty()) bytes *= 0.95;
  const auto best = best_with(0.95 * bytes, true);
  ASSERT_FALSE(best.empty());
  EXPECT_EQ(best.front().scheme, Scheme::Pipeline);
  EXPECT_THAT(keys_of(best.front()), HasSubstr("zero.level=1"));
  EXPECT_THAT(keys_of(best.front()), HasSubstr("zero.offload_optimizer=\"disk\""));
}

TEST(MeshPlan, SlowLinksSpeakForPipelinesAndFastOnesForShares) {
  const auto model = transformer_facts({.layers = 24, .width = 1024, .context = 512});
  const std::vector<double> speeds = {1, 1, 1, 1}, memory(4, 64 * kGiB);
  const auto slow = apart(speeds, memory, kGigabitLink);
  const auto fast = apart(speeds, memory, {5e-6, 50e9});
  EXPECT_EQ(plan_mesh({input_of(model, 16), fast}).best.front().scheme, Scheme::Data);
  EXPECT_EQ(plan_mesh({input_of(model, 16), slow}).best.front().scheme, Scheme::Pipeline);
}

TEST(MeshPlan, NamesWhatNothingHasRoomFor) {
  const auto cluster = apart({1, 1}, {1e8, 1e8}, kGigabitLink);
  const auto plan = plan_mesh({input_of(transformer_facts({}), 4), cluster});
  EXPECT_TRUE(plan.best.empty());
  ASSERT_FALSE(plan.others.empty());
  EXPECT_THAT(mesh_advice(cluster, plan), HasSubstr("Nothing fits"));
  EXPECT_THAT(plan.others.front().reason, HasSubstr("lacks"));
}

// The prediction for uneven stages follows from their lists: half of the work each, and as many
// activations as are under way.
TEST(MeshPlan, StagesOfUnevenReplicasAreDealtMicroBatches) {
  const auto input = input_of(unequal_units(), 64);
  const auto cluster = apart({1, 1, 1}, std::vector<double>(3, 64 * kGiB), kFastLink);
  const PipelineOptions options{.micro_batches = 16};
  const auto one = simulated({input, cluster}, *choose_cut({input, cluster}, {{0}, {1}}, options));
  auto two = choose_cut({input, cluster}, {{0}, {1, 2}}, options);
  ASSERT_TRUE(two);
  EXPECT_FALSE(two->even);
  EXPECT_THAT(two->stages[1].samples, ::testing::ElementsAre(32, 32));
  EXPECT_LT(two->begins()[1], one.begins()[1]);
  EXPECT_EQ(two->peak_bytes.size(), 3u);
  EXPECT_THAT(keys_of(*two), HasSubstr("mesh.replicas=[1, 2]"));
  EXPECT_THAT(describe(cluster, *two), HasSubstr("2 stages of 1 + 2 replicas"));
  const auto run = simulated({input, cluster}, *two);
  EXPECT_LT(run.step_s, 0.85 * one.step_s);
  EXPECT_EQ(run_of({input, cluster}, *two).stages.size(), 3u);
}

TEST(MeshPlan, ShortenedActivationsCostLessWhereTheyLeaveAHost) {
  const LinkSpeed exact{0, 1e6};
  const Network network{{{"one", exact, exact}, {"two", exact, exact}}, {}};
  const Cluster cluster({{.host = 0}, {.host = 0}, {.host = 1}}, network);
  auto input = input_of(unequal_units(), 4);
  MeshChoice even{.scheme = Scheme::Pipeline, .micro_batches = 4};
  even.stages = {{{0}, {4}, {{0, 2}}}, {{1}, {4}, {{2, 4}}}, {{2}, {4}, {{4, 7}}}};
  MeshChoice uneven{.scheme = Scheme::Pipeline, .even = false, .micro_batches = 4};
  uneven.stages = {{{0}, {4}, {{0, 4}}}, {{1, 2}, {2, 2}, {{4, 7}}}};
  const auto inside = crossing({input, cluster}, even, 0, 1);
  const auto between = crossing({input, cluster}, even, 1, 3);
  input.activations.sent = 0.25;
  EXPECT_EQ(crossing({input, cluster}, even, 0, 1), inside);
  EXPECT_DOUBLE_EQ(crossing({input, cluster}, even, 1, 3).first, 0.25 * between.first);
  EXPECT_DOUBLE_EQ(crossing({input, cluster}, even, 1, 3).second, 0.25 * between.second);
  EXPECT_EQ(crossing({input, cluster}, uneven, 0, 3),
            inside);  // the slowest pair is that of a host
  input.activations.within_hosts = true;
  EXPECT_DOUBLE_EQ(crossing({input, cluster}, even, 0, 1).first, 0.25 * inside.first);
  EXPECT_DOUBLE_EQ(crossing({input, cluster}, uneven, 0, 3).first, 0.25 * inside.first);
}

TEST(MeshPlan, SlowLinksAndASmallThirdDeviceSpeakForUnevenStages) {
  const auto input = input_of(transformer_facts({.layers = 12, .width = 768, .context = 512}), 32);
  const auto cluster = apart({2, 1, 1}, std::vector<double>(3, 64 * kGiB), {1e-4, 0.4e9});
  const auto plan = plan_mesh({input, cluster});
  const auto uneven = std::ranges::find_if(plan.best, [](const auto& c) { return !c.even; });
  EXPECT_NE(uneven, plan.best.end());
}

TEST(MeshPlan, WhatAJobAsksForIsCompared) {
  const auto input = input_of(unequal_units(), 12);
  const auto cluster = apart({3, 1}, std::vector<double>(2, 64 * kGiB), kFastLink);
  const auto ask = [&](const Layout& layout, std::vector<std::size_t> cuts) {
    auto choice =
        choose_cut({input, cluster}, layout, {.micro_batches = 2, .cuts = std::move(cuts)});
    return *plan_mesh({input, cluster}, AskedMesh{simulated({input, cluster}, *choice)})
                .asked->choice;
  };
  EXPECT_THAT(ask({{1}, {0}}, {6}).reason, HasSubstr("% slower"));
  const auto best = plan_mesh({input, cluster}).best.front();
  auto own = plan_mesh({input, cluster}, AskedMesh{best}).asked;
  EXPECT_EQ(own->choice->reason, "as fast as the best");
  own = plan_mesh({input, cluster}, AskedMesh{.reason = "of no kind that is planned"}).asked;
  EXPECT_FALSE(own->choice);
  EXPECT_FALSE(plan_mesh({input, cluster}).asked);
}

TEST(MeshPlan, RefusesWhatIsNoModelOrNoCluster) {
  const auto cluster = apart({1}, {kGiB}, kFastLink);
  EXPECT_THROW(plan_mesh({{}, cluster}), Error);
  EXPECT_THROW(plan_mesh({input_of(unequal_units(), 0), cluster}), Error);
  EXPECT_THROW(Cluster({}, {}), Error);
  EXPECT_THROW(Cluster({{.name = "x", .host = 3}}, {}), Error);
}

TEST(Cluster, HostsShareTheirUplink) {
  std::vector<MeshDevice> devices(4);
  for (std::size_t i = 0; i < 4; ++i) devices[i].host = i / 2;
  const Network network{{{"one", {0, 1e9}, {0, 1e8}}, {"two", {0, 1e9}, {0, 1e8}}}, {}};
  const Cluster cluster(devices, network);
  const std::vector<int> from = {0, 1}, to = {2, 3};
  const std::vector<double> bytes = {1e6, 1e6};
  EXPECT_DOUBLE_EQ(cluster.send_seconds(from, to, bytes), 0.02);
  const std::vector<int> one_host = {0, 1};
  EXPECT_DOUBLE_EQ(cluster.all_reduce_seconds(one_host, 1e6), 1e-3);
  const std::vector<int> all = {0, 1, 2, 3};
  EXPECT_DOUBLE_EQ(cluster.all_reduce_seconds(all, 1e6), 1e-3 + 1e-2);
}

/// Half of them are a quarter as fast.
Cluster hosts_of_eight(std::size_t hosts) {
  std::vector<MeshDevice> devices;
  Network network;
  for (std::size_t h = 0; h < hosts; ++h) {
    network.hosts.push_back({"host", {10e-6, 100e9}, {20e-6, 12.5e9}});
    for (int i = 0; i < 8; ++i) {
      devices.push_back({.name = "gpu",
                         .host = h,
                         .memory_bytes = 80 * kGiB,
                         .slower = 2 * h < hosts ? 1.0 / 400 : 1.0 / 100});
    }
  }
  return {devices, network};
}

TEST(MeshPlan, LargeClustersArePlannedToo) {
  const auto cluster = hosts_of_eight(128);
  const auto model = transformer_facts(
      {.layers = 32, .width = 4096, .context = 2048, .element_bytes = 2, .activation_bytes = 2});
  auto input = input_of(model, 2048);
  const auto plan = plan_mesh({input, cluster});
  ASSERT_FALSE(plan.best.empty());
  EXPECT_GT(plan.best.front().devices(), 256);
}

// The planned seconds of a step beside its passes.
using parallel::schedule::Kind;

const std::vector<double> kMuch(3, 64 * kGiB);

double step_of(const MeshInput& input, const Cluster& cluster, Kind schedule) {
  const auto choice =
      choose_cut({input, cluster}, {{0}, {1}, {2}}, {.schedule = schedule, .micro_batches = 3});
  return simulated({input, cluster}, *choice).step_s;
}

TEST(StepSeconds, TheUpdateOfWhatADeviceKeepsCounts) {
  auto model = unequal_units();
  const auto cluster = apart({1, 1}, kMuch, {0, 1e15});
  const auto seconds = [&](const std::vector<int>& devices, int level) {
    return choose_data({input_of(model, 8), cluster}, devices, {.level = level})->step_s;
  };
  const double alone = seconds({0}, 0), shared = seconds({0, 1}, 0), sharded = seconds({0, 1}, 1);
  model.update_s = 1e-8;  // of 7 million elements
  EXPECT_NEAR(seconds({0}, 0) - alone, 0.07, 1e-6);
  EXPECT_NEAR(seconds({0, 1}, 0) - shared, 0.07, 1e-6);
  EXPECT_NEAR(seconds({0, 1}, 1) - sharded, 0.035, 1e-6) << "half of it each";
}

TEST(StepSeconds, ABackwardInTwoPartsTakesWhatWasMeasured) {
  auto input = input_of(unequal_units(), 12);
  const auto cluster = apart({1, 1, 1}, kMuch, kFastLink);
  const double plain = step_of(input, cluster, Kind::one_f_one_b);
  EXPECT_LT(step_of(input, cluster, Kind::zero_bubble), plain) << "for nothing";
  input.facts.front().split_inputs = 0.7;
  input.facts.front().split_weights = 0.9;
  EXPECT_GT(step_of(input, cluster, Kind::zero_bubble), plain);
  EXPECT_EQ(step_of(input, cluster, Kind::one_f_one_b), plain);
}

TEST(StepSeconds, CoresThatComputeHideNothingThatTheyCopy) {
  const auto input = input_of(unequal_units(), 64);
  const LinkSpeed link{0, 1e9};
  Network network{.hosts = {{.name = "host", .inside = link, .uplink = link}}};
  std::vector<MeshDevice> devices(2);
  const auto cards = choose_data({input, {devices, network}}, {0, 1}, {});
  for (auto& device : devices) device.is_host = true;
  const auto cores = choose_data({input, {devices, network}}, {0, 1}, {});
  EXPECT_LT(cards->waiting_s, cores->waiting_s);
  EXPECT_NEAR(cores->waiting_s, cores->sent_s, 1e-9);
  EXPECT_EQ(cards->compute_s, cores->compute_s);
}

}  // namespace
}  // namespace bimetal::plan
