#include "bimetal/serving/batcher.h"

#include <gtest/gtest.h>

#include <thread>

namespace bimetal::serving {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::hours kNever{1};

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

std::shared_ptr<Request> of(std::uint64_t client, std::int64_t samples) {
  auto request = std::make_shared<Request>();
  request->client = client;
  request->samples = samples;
  return request;
}

void ask(Batcher& batcher, std::uint64_t client, std::int64_t samples) {
  ASSERT_TRUE(batcher.reserve(samples));
  batcher.add(of(client, samples));
}

std::vector<std::pair<std::uint64_t, std::int64_t>> parts_of(const std::optional<Batch>& batch) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> parts;
  for (const auto& part : batch.value_or(Batch{})) {
    parts.emplace_back(part.request->client, part.samples);
  }
  return parts;
}

using Parts = std::vector<std::pair<std::uint64_t, std::int64_t>>;

TEST(Batcher, ALargeRequestIsTakenApartAndHoldsUpNobodyForLong) {
  Batcher batcher({.max_batch = 4, .max_delay = std::chrono::microseconds(0)});
  ask(batcher, 1, 10);
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{1, 4}}));
  ask(batcher, 2, 1);
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{1, 4}}));  // it was there first
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{2, 1}, {1, 2}}));
  EXPECT_EQ(batcher.waiting(), 0);
}

TEST(Batcher, WaitsForOthersUnlessAllClientsAskAlready) {
  Batcher batcher({.max_batch = 100, .max_delay = kNever});
  batcher.set_clients(2);
  ask(batcher, 1, 1);
  ask(batcher, 1, 1);  // a second one of the same client
  EXPECT_FALSE(batcher.next(Deadline::after(milliseconds(20))));
  ask(batcher, 2, 1);
  EXPECT_EQ(parts_of(batcher.next(soon())).size(), 3u);
  ask(batcher, 1, 1);
  EXPECT_FALSE(batcher.next(Deadline::after(milliseconds(20))));
  batcher.set_clients(1);  // the other one has left
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{1, 1}}));
}

TEST(Batcher, WaitsNoLongerThanItsDelay) {
  Batcher batcher({.max_batch = 100, .max_delay = milliseconds(30)});
  batcher.set_clients(2);
  const auto begin = std::chrono::steady_clock::now();
  ask(batcher, 1, 1);
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{1, 1}}));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(30));
}

TEST(Batcher, WakesUpForARequestThatFillsABatch) {
  Batcher batcher({.max_batch = 2, .max_delay = kNever});
  batcher.set_clients(5);
  ask(batcher, 1, 1);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(20));
    ask(batcher, 2, 1);
  });
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{1, 1}, {2, 1}}));
  later.join();
}

TEST(Batcher, TurnsAwayWhatWouldWaitTooLong) {
  Batcher batcher({.max_batch = 4, .max_delay = std::chrono::microseconds(0), .max_waiting = 10});
  ask(batcher, 1, 50);  // alone, it is taken whatever its size
  EXPECT_FALSE(batcher.reserve(1));
  while (batcher.waiting() > 0) ASSERT_TRUE(batcher.next(soon()));
  ASSERT_TRUE(batcher.reserve(6));  // on its way
  EXPECT_FALSE(batcher.reserve(5));
  EXPECT_TRUE(batcher.reserve(4));
  batcher.release(6);
  EXPECT_TRUE(batcher.reserve(6));
}

TEST(Batcher, ForgetsAClientThatHasLeft) {
  Batcher batcher({.max_batch = 2, .max_delay = std::chrono::microseconds(0)});
  ask(batcher, 1, 5);
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{1, 2}}));
  ask(batcher, 2, 1);
  batcher.forget([](const Request& request) { return request.client == 1; });
  EXPECT_EQ(batcher.waiting(), 1);
  EXPECT_EQ(parts_of(batcher.next(soon())), (Parts{{2, 1}}));
  EXPECT_FALSE(batcher.next(Deadline::after(milliseconds(1))));
}

}  // namespace
}  // namespace bimetal::serving
