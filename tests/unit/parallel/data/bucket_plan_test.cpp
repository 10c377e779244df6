#include "bimetal/parallel/data/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace bimetal::parallel {
namespace {

using ::testing::ElementsAre;

std::vector<std::size_t> parameters_of(const BucketPlan& plan) {
  std::vector<std::size_t> indices;
  for (const auto& slot : plan.slots) indices.push_back(slot.parameter);
  return indices;
}

TEST(BucketPlan, NoParametersMakeNoBuckets) {
  EXPECT_TRUE(plan_buckets({}, 1, 1).empty());
}

TEST(BucketPlan, TakesParametersInReverse) {
  const std::vector<ParameterSize> sizes = {
      {torch::kFloat32, 3}, {torch::kFloat32, 5}, {torch::kFloat32, 7}};
  const auto plans = plan_buckets(sizes, 1 << 20, 1 << 20);
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_THAT(parameters_of(plans[0]), ElementsAre(2, 1, 0));
  EXPECT_EQ(plans[0].slots[0].offset, 0);
  EXPECT_EQ(plans[0].slots[1].offset, 7);
  EXPECT_EQ(plans[0].slots[2].offset, 12);
  EXPECT_EQ(plans[0].count, 15);
}

TEST(BucketPlan, FirstBucketClosesEarlierThanTheRest) {
  const std::vector<ParameterSize> sizes(7, {torch::kFloat32, 1});
  const auto plans = plan_buckets(sizes, /*first_bytes=*/8, /*later_bytes=*/12);
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_THAT(parameters_of(plans[0]), ElementsAre(6, 5));
  EXPECT_THAT(parameters_of(plans[1]), ElementsAre(4, 3, 2));
  EXPECT_THAT(parameters_of(plans[2]), ElementsAre(1, 0));
}

// The reference network: its one large layer must not wait for the convolutions below it.
TEST(BucketPlan, LargeGradientClosesItsBucket) {
  const std::vector<ParameterSize> sizes = {{torch::kFloat32, 100},
                                            {torch::kFloat32, 100},
                                            {torch::kFloat32, 400'000},
                                            {torch::kFloat32, 10}};
  const auto plans = plan_buckets(sizes, 1 << 20, 25 << 20);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_THAT(parameters_of(plans[0]), ElementsAre(3, 2));
  EXPECT_THAT(parameters_of(plans[1]), ElementsAre(1, 0));
}

TEST(BucketPlan, TypesDoNotShareBucketsAndComeInTheOrderOfFilling) {
  const std::vector<ParameterSize> sizes = {
      {torch::kFloat32, 4}, {torch::kFloat16, 4}, {torch::kFloat32, 4}, {torch::kFloat16, 4}};
  const auto plans = plan_buckets(sizes, 1 << 20, 1 << 20);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].dtype, torch::kFloat16);
  EXPECT_THAT(parameters_of(plans[0]), ElementsAre(3, 1));
  EXPECT_EQ(plans[1].dtype, torch::kFloat32);
  EXPECT_THAT(parameters_of(plans[1]), ElementsAre(2, 0));
}

TEST(BucketPlan, CapacityIsInBytesOfTheType) {
  const std::vector<ParameterSize> singles(4, {torch::kFloat32, 1});
  const std::vector<ParameterSize> doubles(4, {torch::kFloat64, 1});
  EXPECT_EQ(plan_buckets(singles, 8, 8).size(), 2u);
  EXPECT_EQ(plan_buckets(doubles, 8, 8).size(), 4u);
}

TEST(BucketPlan, EmptyParametersHaveTheirSlot) {
  const std::vector<ParameterSize> sizes = {{torch::kFloat32, 0}, {torch::kFloat32, 0}};
  const auto plans = plan_buckets(sizes, 1 << 20, 1 << 20);
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_THAT(parameters_of(plans[0]), ElementsAre(1, 0));
  EXPECT_EQ(plans[0].count, 0);
}

TEST(BucketPlan, EveryParameterIsInExactlyOneBucketWithoutGaps) {
  std::mt19937 random(7);
  const std::vector dtypes = {torch::kFloat32, torch::kFloat64, torch::kBFloat16};
  for (int round = 0; round < 200; ++round) {
    std::vector<ParameterSize> sizes(random() % 40);
    for (auto& size : sizes) {
      size = {dtypes[random() % dtypes.size()], static_cast<std::int64_t>(random() % 300)};
    }
    std::vector<std::size_t> seen;
    for (const auto& plan : plan_buckets(sizes, random() % 500, random() % 3000)) {
      ASSERT_FALSE(plan.slots.empty());
      std::int64_t offset = 0;
      for (const auto& slot : plan.slots) {
        EXPECT_EQ(sizes[slot.parameter].dtype, plan.dtype);
        EXPECT_EQ(slot.count, sizes[slot.parameter].count);
        EXPECT_EQ(slot.offset, offset);
        offset += slot.count;
        seen.push_back(slot.parameter);
      }
      EXPECT_EQ(plan.count, offset);
    }
    std::ranges::sort(seen);
    ASSERT_EQ(seen.size(), sizes.size());
    for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], i);
  }
}

}  // namespace
}  // namespace bimetal::parallel
