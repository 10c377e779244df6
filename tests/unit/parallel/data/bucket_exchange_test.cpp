#include "bimetal/parallel/data/bucket_exchange.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <future>
#include <thread>

#include "bimetal/base/error.h"
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
  return exchange.communicate_seconds() == 0;
}

TEST(BucketExchange, SumsBucketsOfferedInAnyOrder) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    BucketExchange exchange(group, kExchangeTimeout);
    for (int step = 0; step < 3; ++step) {
      exchange.begin(3);
      std::vector<torch::Tensor> buckets;
      for (int i = 0; i < 3; ++i) buckets.push_back(torch::full({4 + i}, 1.f + rank));
      for (int i = 0; i < 3; ++i) {
        const int index = (i + rank) % 3;  // another order on each rank
        exchange.offer(index, buckets[index], {});
        exchange.send_ready();
      }
      for (int i = 0; i < 3; ++i) {
        exchange.wait(i);
        EXPECT_TRUE(buckets[i].equal(torch::full({4 + i}, 6.f)));
      }
    }
  });
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

}  // namespace
}  // namespace bimetal::parallel
