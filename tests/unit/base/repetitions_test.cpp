#include "bimetal/base/repetitions.h"

#include <gtest/gtest.h>

namespace bimetal {
namespace {

using std::chrono::seconds;

TEST(Repetitions, TheFirstAreToldAndLaterOnesNowAndThenWithTheNumberBetween) {
  Repetitions events(2, seconds(10));
  const Repetitions::Clock::time_point begin{seconds(1000)};
  EXPECT_EQ(events.next(begin), 0u);
  EXPECT_EQ(events.next(begin), 0u);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(events.next(begin + seconds(9)), std::nullopt);
  EXPECT_EQ(events.next(begin + seconds(10)), 2000u);
  EXPECT_EQ(events.next(begin + seconds(11)), std::nullopt);
  EXPECT_EQ(events.take_left_out(), 1u);
  EXPECT_EQ(events.take_left_out(), 0u);
  EXPECT_EQ(events.next(begin + seconds(20)), 0u);
}

}  // namespace
}  // namespace bimetal
