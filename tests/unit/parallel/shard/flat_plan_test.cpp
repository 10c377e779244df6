#include "bimetal/parallel/shard/flat_plan.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <numeric>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/parallel/shard/sharded_model.h"

namespace bimetal::parallel::shard {
namespace {

using PlaceList = std::vector<ParameterPlace>;
using Weights = std::vector<double>;

ParameterPlace place(std::int64_t count, std::size_t unit, bool shared = false,
                     torch::ScalarType dtype = torch::kFloat32) {
  return {dtype, count, unit, shared};
}

std::vector<std::int64_t> counts_of(const std::vector<FlatPlan>& flats) {
  std::vector<std::int64_t> counts;
  for (const auto& flat : flats) counts.push_back(flat.count);
  return counts;
}

TEST(FlatPlan, SmallUnitsTravelTogether) {
  const PlaceList places = {place(8, 0), place(8, 1), place(8, 2), place(8, 3)};
  EXPECT_EQ(counts_of(plan_flats(places, Weights{1}, 48)), (std::vector<std::int64_t>{16, 16}));
}

TEST(FlatPlan, WhatSeveralUnitsUseIsApart) {
  const PlaceList places = {place(5, 0), place(100, 0, true), place(7, 0), place(3, 1)};
  const auto flats = plan_flats(places, Weights{1}, 0);
  EXPECT_EQ(counts_of(flats), (std::vector<std::int64_t>{12, 100, 3}));
  EXPECT_TRUE(flats[1].shared);
  EXPECT_FALSE(flats[0].shared);
}

TEST(FlatPlan, TypesDoNotMix) {
  const PlaceList places = {place(4, 0), place(4, 0, false, torch::kFloat64), place(4, 0)};
  EXPECT_EQ(counts_of(plan_flats(places, Weights{1}, 0)), (std::vector<std::int64_t>{8, 4}));
}

TEST(FlatPlan, WhatIsGatheredInAnotherTypeIsApart) {
  PlaceList places = {place(4, 0), place(5, 0), place(6, 0), place(7, 1)};
  places[1].gathered = places[3].gathered = torch::kBFloat16;
  const auto flats = plan_flats(places, Weights{1}, 0);
  EXPECT_EQ(counts_of(flats), (std::vector<std::int64_t>{10, 5, 7}));
  EXPECT_EQ(flats[0].gathered, torch::kFloat32);
  EXPECT_EQ(flats[1].gathered, torch::kBFloat16);
  EXPECT_EQ(flats[1].dtype, torch::kFloat32);
}

TEST(FlatPlan, ResidentOnesOfAllUnitsComeFirst) {
  PlaceList places = {place(40, 0), place(2, 0), place(50, 1), place(3, 1)};
  places[1].resident = places[3].resident = true;
  const auto flats = plan_flats(places, Weights{1}, 0);
  EXPECT_EQ(counts_of(flats), (std::vector<std::int64_t>{5, 40, 50}));
  EXPECT_TRUE(flats[0].resident);
  EXPECT_FALSE(flats[1].resident);
  EXPECT_EQ(flats[0].slots[1].parameter, 3U);
}

TEST(FlatPlan, EveryElementOfAParameterIsKeptOnce) {
  const auto flats =
      plan_flats(PlaceList{place(13, 0), place(1, 0), place(29, 0)}, Weights{1, 3, 0, 2}, 0);
  const auto& flat = flats.front();
  for (const auto& slot : flat.slots) {
    std::int64_t next = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const auto kept = kept_of(flat, slot, rank);
      if (kept.count == 0) continue;
      EXPECT_EQ(kept.offset, next) << "rank " << rank;
      next += kept.count;
    }
    EXPECT_EQ(next, slot.count);
  }
}

/// The cut of a flat tensor of that many elements, by rank.
std::vector<std::size_t> cut(ParameterPlace whole, const Weights& weights) {
  return plan_flats(PlaceList{whole}, weights, 0).front().counts;
}

TEST(FlatPlan, LargeOnesAreCutWhereLinesOfCachesBegin) {
  for (const std::int64_t count : {4096, 5003, 1'000'003}) {
    for (const auto& weights : {Weights{5, 2, 0, 1}, Weights{1, 1, 1}, Weights{0, 0.3, 0.7, 0}}) {
      const auto counts = cut(place(count, 0), weights);
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      std::size_t begin = 0;
      for (std::size_t rank = 0; rank < weights.size(); ++rank) {
        const auto exact = static_cast<double>(count) * weights[rank] / sum;
        EXPECT_EQ(counts[rank] == 0, weights[rank] == 0) << count << ", rank " << rank;
        EXPECT_NEAR(static_cast<double>(counts[rank]), exact, 17) << count;
        EXPECT_TRUE(counts[rank] == 0 || begin % 16 == 0) << count << ", rank " << rank;
        begin += counts[rank];
      }
      EXPECT_EQ(begin, static_cast<std::size_t>(count));
    }
  }
}

TEST(FlatPlan, ALineHasMoreElementsOfASmallerType) {
  auto halved = place(5003, 0);
  EXPECT_EQ(cut(halved, {2, 1}), (std::vector<std::size_t>{3328, 1675}));
  halved.gathered = torch::kBFloat16;
  EXPECT_EQ(cut(halved, {2, 1}), (std::vector<std::size_t>{3328, 1675}));
  EXPECT_EQ(cut(halved, {3, 1}), (std::vector<std::size_t>{3744, 1259}));
  EXPECT_EQ(cut(place(5003, 0), {3, 1}), (std::vector<std::size_t>{3760, 1243}));
  EXPECT_EQ(cut(place(5003, 0, false, torch::kFloat64), {3, 1}),
            (std::vector<std::size_t>{3752, 1251}));
}

TEST(FlatPlan, WeightsMustBeSome) {
  for (const auto& weights : {Weights{}, Weights{0, 0}, Weights{1, -1}}) {
    EXPECT_THROW(plan_flats(PlaceList{place(1, 0)}, weights, 0), Error);
  }
}

std::vector<FlatPlan> plans_of(std::vector<double> weights) {
  const std::vector<ParameterPlace> parameters = {{.count = 30}, {.count = 50, .unit = 1}};
  return plan_flats(parameters, weights, 0);
}

TEST(ShardBuddies, TheNextRankWithAShardHasTheCopy) {
  const auto plans = plans_of({3, 0, 1, 2});
  EXPECT_EQ(buddies_of(plans, 0), (Buddies{.of = 3, .at = 2}));
  EXPECT_EQ(buddies_of(plans, 1), (Buddies{}));
  EXPECT_EQ(buddies_of(plans, 2), (Buddies{.of = 0, .at = 3}));
  EXPECT_EQ(buddies_of(plans, 3), (Buddies{.of = 2, .at = 0}));
}

TEST(ShardBuddies, OneShardHasNoCopy) {
  EXPECT_EQ(buddies_of(plans_of({0, 1}), 1), (Buddies{}));
  EXPECT_EQ(buddies_of(plans_of({1}), 0), (Buddies{}));
}

}  // namespace
}  // namespace bimetal::parallel::shard
