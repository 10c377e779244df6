#include "bimetal/launch/local/root_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

#include "bimetal/launch/local/stop_request.h"

namespace bimetal::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RankOutcome well(int rank) {
  return {rank, "cpu", 100 + rank, {}, false, std::nullopt};
}

RankOutcome failed(int rank, ErrorCode code, const std::string& message) {
  auto outcome = well(rank);
  outcome.exit.status = 5;
  outcome.error = Error(code, message, rank);
  return outcome;
}

RankOutcome killed(int rank, int signal) {
  auto outcome = well(rank);
  outcome.exit.signal = signal;
  return outcome;
}

TEST(RootCause, IsNothingWhenAllEndWell) {
  const std::vector<RankOutcome> outcomes = {well(0), well(1)};
  EXPECT_FALSE(root_cause(outcomes, 2, false));
}

TEST(RootCause, AKilledRankComesBeforeThoseThatLostIt) {
  const std::vector<RankOutcome> outcomes = {failed(0, ErrorCode::PeerLost, "rank 1 is gone"),
                                             killed(1, SIGKILL)};
  const auto cause = root_cause(outcomes, 2, false);
  ASSERT_TRUE(cause);
  EXPECT_TRUE(cause->first_hand);
  EXPECT_EQ(cause->error.code(), ErrorCode::PeerLost);
  EXPECT_EQ(cause->error.rank(), 1);
  EXPECT_THAT(cause->error.what(),
              AllOf(HasSubstr("rank 1 (cpu, pid 101) was killed by signal 9 (Killed)"),
                    HasSubstr("the other ranks were stopped"), Not(HasSubstr("is gone"))));
}

TEST(RootCause, AnErrorOfItsOwnComesBeforeItsConsequences) {
  const std::vector<RankOutcome> outcomes = {
      failed(0, ErrorCode::Aborted, "rank 2 failed"), failed(1, ErrorCode::Timeout, "no answer"),
      failed(2, ErrorCode::NotFinite, "the loss of step 7 is NaN")};
  const auto cause = root_cause(outcomes, 3, false);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->error.code(), ErrorCode::NotFinite);
  EXPECT_THAT(cause->error.what(), HasSubstr("rank 2 (cpu, pid 102): the loss of step 7 is NaN"));
}

TEST(RootCause, WhatAllRanksSayNeedsNoRank) {
  const std::vector<RankOutcome> outcomes = {
      failed(0, ErrorCode::InvalidArgument, "no such model"),
      failed(1, ErrorCode::InvalidArgument, "no such model")};
  EXPECT_STREQ(root_cause(outcomes, 2, false)->error.what(), "no such model");
}

TEST(RootCause, ALostPeerElsewhereIsSecondHand) {
  const std::vector<RankOutcome> outcomes = {failed(0, ErrorCode::PeerLost, "rank 1 is gone")};
  const auto cause = root_cause(outcomes, 2, false);
  ASSERT_TRUE(cause);
  EXPECT_FALSE(cause->first_hand);
}

TEST(RootCause, TheLauncherItselfIsNoCause) {
  auto stuck = killed(1, SIGKILL);
  stuck.killed_by_us = true;
  const std::vector<RankOutcome> outcomes = {failed(0, ErrorCode::Timeout, "rank 1 is stuck"),
                                             stuck};
  EXPECT_EQ(root_cause(outcomes, 2, false)->error.code(), ErrorCode::Timeout);
}

TEST(RootCause, ASilentFailureIsNamed) {
  auto silent = well(0);
  silent.exit.status = 3;
  const std::vector<RankOutcome> outcomes = {silent};
  EXPECT_THAT(root_cause(outcomes, 1, false)->error.what(),
              AllOf(HasSubstr("ended with exit status 3"), Not(HasSubstr("other ranks"))));
}

TEST(RootCause, AnInterruptedJobHasNone) {
  auto orderly = well(0);
  orderly.exit.status = kInterruptedStatus;
  const std::vector<RankOutcome> outcomes = {orderly, killed(1, SIGINT),
                                             failed(2, ErrorCode::PeerLost, "rank 1 is gone")};
  EXPECT_FALSE(root_cause(outcomes, 3, true));
}

TEST(RootCause, AnInterruptedJobThatCouldNotSaveHasOne) {
  auto orderly = well(0);
  orderly.exit.status = kInterruptedStatus;
  const std::vector<RankOutcome> outcomes = {failed(0, ErrorCode::System, "disk full"), orderly};
  EXPECT_EQ(root_cause(outcomes, 2, true)->error.code(), ErrorCode::System);
}

}  // namespace
}  // namespace bimetal::launch
