#include "bimetal/launch/ssh/host_jobs.h"

#include <gtest/gtest.h>

namespace bimetal::launch {
namespace {

TEST(MeetingAddress, IsLoopbackForOneMachine) {
  EXPECT_EQ(meeting_address({{"localhost", "", true}}), "127.0.0.1");
}

TEST(MeetingAddress, IsWhereSshReachedTheFirstHost) {
  EXPECT_EQ(meeting_address({{"gpu1", "10.0.0.7", false}, {"localhost", "", true}}), "10.0.0.7");
  EXPECT_EQ(meeting_address({{"gpu1", "", false}, {"gpu2", "10.0.0.8", false}}), "gpu1");
}

TEST(MeetingAddress, IsThisMachinesOnTheWayToTheOthers) {
  EXPECT_EQ(meeting_address({{"localhost", "", true}, {"other", "127.0.0.2", false}}), "127.0.0.1");
}

}  // namespace
}  // namespace bimetal::launch
