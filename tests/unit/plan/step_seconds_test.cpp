// What a step is planned to take beside its passes.

#include <gtest/gtest.h>

#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/pipeline_choice.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using parallel::schedule::Kind;

const std::vector<double> kMuch(3, 64 * kGiB);

double step_of(const MeshInput& input, const Cluster& cluster, Kind schedule) {
  const auto choice =
      choose_cut(input, cluster, {{0}, {1}, {2}}, {.schedule = schedule, .micro_batches = 3});
  return simulated(input, cluster, *choice).step_s;
}

TEST(StepSeconds, TheUpdateOfWhatADeviceKeepsCounts) {
  auto model = unequal_units();
  const auto cluster = apart({1, 1}, kMuch, {0, 1e15});
  const auto seconds = [&](const std::vector<int>& devices, int level) {
    return choose_data(input_of(model, 8), cluster, devices, {.level = level})->step_s;
  };
  const double alone = seconds({0}, 0), shared = seconds({0, 1}, 0), sharded = seconds({0, 1}, 1);
  model.update_s = 1e-8;  // of 7 million elements
  EXPECT_NEAR(seconds({0}, 0) - alone, 0.07, 1e-6);
  EXPECT_NEAR(seconds({0, 1}, 0) - shared, 0.07, 1e-6);
  EXPECT_NEAR(seconds({0, 1}, 1) - sharded, 0.035, 1e-6) << "half of it each";
}

TEST(StepSeconds, TheUpdateOfAStageCounts) {
  auto input = input_of(unequal_units(), 12);
  const auto cluster = apart({1, 1, 1}, kMuch, kFastLink);
  const double without = step_of(input, cluster, Kind::one_f_one_b);
  input.facts.front().update_s = 1e-8;
  const double with = step_of(input, cluster, Kind::one_f_one_b);
  EXPECT_GE(with - without, 0.01 - 1e-9);
  EXPECT_LE(with - without, 0.05) << "no stage has all units";
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
  const auto cards = choose_data(input, {devices, network}, {0, 1}, {});
  for (auto& device : devices) device.is_host = true;
  const auto cores = choose_data(input, {devices, network}, {0, 1}, {});
  EXPECT_LT(cards->waiting_s, cores->waiting_s);
  EXPECT_NEAR(cores->waiting_s, cores->sent_s, 1e-9);
  EXPECT_EQ(cards->compute_s, cores->compute_s);
}

}  // namespace
}  // namespace bimetal::plan
