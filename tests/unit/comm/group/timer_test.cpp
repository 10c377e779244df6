#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <vector>

#include "bimetal/comm/group/executor.h"

namespace bimetal::comm {
namespace {

using std::chrono::milliseconds;
constexpr auto kLong = std::chrono::minutes(1);

TEST(Timer, RunsAlarmsInTheOrderOfTheirTimes) {
  std::vector<int> order;
  std::promise<void> last;
  std::promise<void> all_set;
  Timer timer;
  timer.at(Deadline::after(milliseconds(0)), [&] { all_set.get_future().wait(); });
  timer.at(Deadline::after(milliseconds(60)), [&] {
    order.push_back(3);
    last.set_value();
  });
  timer.at(Deadline::after(milliseconds(20)), [&] { order.push_back(1); });
  timer.at(Deadline::after(milliseconds(40)), [&] { order.push_back(2); });
  all_set.set_value();
  ASSERT_EQ(last.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

TEST(Timer, ACancelledAlarmDoesNotRun) {
  bool ran = false;
  std::promise<void> later;
  Timer timer;
  const auto alarm = timer.at(Deadline::after(milliseconds(20)), [&] { ran = true; });
  timer.at(Deadline::after(milliseconds(40)), [&] { later.set_value(); });
  timer.cancel(alarm);
  timer.cancel(alarm);
  timer.cancel({});
  ASSERT_EQ(later.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_FALSE(ran);
}

TEST(Timer, AnAlarmMaySetAndCancelAlarms) {
  std::promise<void> second;
  Timer timer;
  const auto never = timer.at(Deadline::after(kLong), [] { FAIL(); });
  timer.at(Deadline::after(milliseconds(1)), [&] {
    timer.cancel(never);
    timer.at(Deadline::after(milliseconds(1)), [&] { second.set_value(); });
  });
  EXPECT_EQ(second.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(Timer, StoppingDropsWhatIsLeft) {
  Timer timer;
  const auto held = std::make_shared<int>();
  timer.at(Deadline::after(kLong), [held] { FAIL(); });
  timer.stop();
  timer.at(Deadline::after(milliseconds(0)), [held] { FAIL(); });
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace bimetal::comm
