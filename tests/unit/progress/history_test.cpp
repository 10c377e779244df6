#include "bimetal/progress/history.h"

#include <gtest/gtest.h>

namespace bimetal::progress {
namespace {

History history_of(std::int64_t steps) {
  History history;
  for (std::int64_t step = 1; step <= steps; ++step) history.add({.step = step});
  return history;
}

TEST(History, KeepsEveryPointOfAShortRun) {
  const auto history = history_of(1999);
  ASSERT_EQ(history.points().size(), 1999u);
  EXPECT_EQ(history.points().back().step, 1999);
}

TEST(History, ThinsALongRunEvenly) {
  for (const std::int64_t steps : {2001, 5000, 123'456}) {
    const auto history = history_of(steps);
    const auto& points = history.points();
    EXPECT_LE(points.size(), History::kMost);
    EXPECT_GE(points.size(), History::kMost / 2);
    EXPECT_EQ(points.front().step, 1);
    const auto stride = points[1].step - points[0].step;
    for (std::size_t i = 1; i < points.size(); ++i) {
      ASSERT_EQ(points[i].step - points[i - 1].step, stride);
    }
    EXPECT_GT(points.back().step + stride, steps);
  }
}

}  // namespace
}  // namespace bimetal::progress
