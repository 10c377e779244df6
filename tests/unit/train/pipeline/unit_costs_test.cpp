#include "bimetal/train/pipeline/unit_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <set>
#include <thread>

#include "unit/train/pipeline/row_task.h"

namespace bimetal::train {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;

constexpr double kRow = 16 * sizeof(float);

UnitCosts costs_of(const test::RowTask& task, std::int64_t samples,
                   std::chrono::milliseconds budget = 10ms) {
  return unit_costs(task, {.budget = budget, .samples = samples});
}

TEST(UnitCosts, AreThoseOfAMicroBatchThatWillRun) {
  test::RowTask task;
  task.units = 3;
  std::set<std::int64_t> computed;
  task.before = [&](std::int64_t samples) { computed.insert(samples); };
  const auto costs = costs_of(task, 32, 1000ms);
  EXPECT_EQ(*computed.rbegin(), 32);
  EXPECT_THAT(costs.seconds, Each(Gt(0)));
  EXPECT_THAT(costs.sent.forward, ElementsAre(32 * kRow, 32 * kRow, sizeof(float)));
  EXPECT_EQ(costs.sent.backward, costs.sent.forward);
  computed.clear();
  EXPECT_EQ(costs_of(task, 1).sent.forward[0], kRow);
  EXPECT_THAT(computed, ElementsAre(1));
}

TEST(UnitCosts, OfMoreSamplesThanThereAreAreInProportion) {
  test::RowTask task;
  task.data = 8;
  EXPECT_EQ(costs_of(task, 32).sent.forward[0], 32 * kRow);
}

TEST(UnitCosts, OfMicroBatchesThatTakeTooLongAreInProportion) {
  test::RowTask task;
  task.units = 2;
  task.data = 1000;
  std::int64_t most = 0;
  task.before = [&](std::int64_t samples) {
    most = std::max(most, samples);
    std::this_thread::sleep_for(samples * 1ms);
  };
  const auto costs = costs_of(task, 1000, 40ms);
  EXPECT_LT(most, 1000);
  EXPECT_DOUBLE_EQ(costs.sent.forward[0], 1000 * kRow);
  EXPECT_GT(costs.seconds[0], 0.9);
}

TEST(UnitCosts, OfMicroBatchesThatDoNotFitAreInProportion) {
  test::RowTask task;
  task.before = [](std::int64_t samples) {
    if (samples > 4) throw std::bad_alloc();
  };
  EXPECT_DOUBLE_EQ(costs_of(task, 32).sent.forward[0], 32 * kRow);
  task.before = [](std::int64_t) { throw std::bad_alloc(); };
  EXPECT_TRUE(costs_of(task, 32).seconds.empty());
}

}  // namespace
}  // namespace bimetal::train
