#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <future>
#include <random>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/bucket.h"
#include "support/errors.h"
#include "support/manual_device.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kExchangeTimeout{60};

// A copy from the device that has not ended.
device::CopyMark pending_copy() {
  return device::CopyMark(testing::ManualDevice::record());
}

// Nothing has been sent while the exchange has not begun to take time.
bool nothing_sent(const BucketExchange& exchange) {
  return exchange.times().seconds() == 0;
}

TEST(BucketExchange, BucketWaitsForThoseBeforeIt) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    BucketExchange exchange(group, kExchangeTimeout);
    exchange.begin(2);
    exchange.offer(1, torch::ones({2}), {});
    exchange.send_ready();
    EXPECT_TRUE(nothing_sent(exchange));
    exchange.offer(0, torch::ones({2}), {});
    exchange.send_ready();
    EXPECT_FALSE(nothing_sent(exchange));
    exchange.wait(0);
    exchange.wait(1);
  });
}

TEST(BucketExchange, BucketIsSentOnceItsCopyHasEnded) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    BucketExchange exchange(group, kExchangeTimeout);
    const auto bucket = torch::zeros({3});
    exchange.begin(1);
    exchange.offer(0, bucket, pending_copy());
    exchange.send_ready();
    EXPECT_TRUE(nothing_sent(exchange));
    group.barrier().wait();  // both have seen their copies pending
    bucket.fill_(1);         // what the device's copy would have done
    testing::ManualDevice::run_queue();
    exchange.send_ready();
    EXPECT_FALSE(nothing_sent(exchange));
    exchange.wait(0);
    EXPECT_TRUE(bucket.equal(torch::full({3}, 2.f)));
  });
}

TEST(BucketExchange, WaitSendsWhatBecomesReadyMeanwhile) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    BucketExchange exchange(group, kExchangeTimeout);
    std::vector<torch::Tensor> buckets(3);
    for (auto& bucket : buckets) bucket = torch::ones({3});
    exchange.begin(3);
    exchange.offer(0, buckets[0], {});
    exchange.offer(1, buckets[1], pending_copy());
    exchange.offer(2, buckets[2], pending_copy());
    exchange.send_ready();
    std::thread device([] {
      std::this_thread::sleep_for(milliseconds(50));
      testing::ManualDevice::run_queue();
    });
    for (int i = 0; i < 3; ++i) {
      exchange.wait(i);
      EXPECT_TRUE(buckets[i].equal(torch::full({3}, 2.f)));
    }
    device.join();
  });
}

TEST(BucketExchange, HungDeviceEndsInATimeout) {
  testing::run_ranks(1, [](int rank, comm::Group group) {
    BucketExchange exchange(group, milliseconds(100));
    exchange.begin(1);
    exchange.offer(0, torch::ones({3}), pending_copy());
    expect_error(ErrorCode::Timeout, {}, [&] { exchange.wait(0); });
  });
}

TEST(BucketExchange, FailureOfTheFabricComesOutOfWait) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    BucketExchange exchange(group, kExchangeTimeout);
    exchange.begin(2);
    if (rank == 1) group.abort("test");
    exchange.offer(0, torch::ones({3}), {});
    exchange.offer(1, torch::ones({3}), {});
    EXPECT_NO_THROW(exchange.send_ready());
    EXPECT_THROW(exchange.wait(0), Error);
  });
}

// The fabric may still write into a bucket that everyone else has forgotten.
TEST(BucketExchange, KeepsMemoryUntilTheSumIsDone) {
  std::promise<void> checked;
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto bucket = torch::ones({1000});
    if (rank == 1) checked.get_future().wait();
    {
      BucketExchange exchange(group, kExchangeTimeout);
      exchange.begin(1);
      exchange.offer(0, bucket, {});
      exchange.send_ready();
    }
    if (rank == 0) {
      EXPECT_GT(bucket.use_count(), 1u);
      checked.set_value();
    }
    group.barrier().wait();
  });
}

using ::testing::ElementsAre;

std::vector<std::size_t> parameters_of(const BucketPlan& plan) {
  std::vector<std::size_t> indices;
  for (const auto& slot : plan.slots) indices.push_back(slot.parameter);
  return indices;
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
