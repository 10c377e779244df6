#include "bimetal/launch/local/status_pipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {
namespace {

/// A reporter whose launcher is this test.
class Connection {
 public:
  Connection() : pipe_(Pipe::create()) {
    const int rank_end = ::dup(pipe_.write.number());
    ::setenv(kStatusVariable, std::to_string(rank_end).c_str(), 1);
    reporter_ = std::make_unique<StatusReporter>();
    set_nonblocking(pipe_.read);
  }

  StatusReporter& reporter() { return *reporter_; }

  std::string sent() {
    std::string bytes;
    read_available(pipe_.read, bytes);
    return bytes;
  }

 private:
  Pipe pipe_;
  std::unique_ptr<StatusReporter> reporter_;
};

TEST(StatusPipe, CarriesEveryCode) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::Internal); ++i) {
    Connection connection;
    connection.reporter().failed(Error(static_cast<ErrorCode>(i), "x"));
    RankStatus status;
    status.feed(connection.sent());
    EXPECT_EQ(status.error()->code(), static_cast<ErrorCode>(i));
    EXPECT_FALSE(status.error()->rank());
  }
}

TEST(StatusPipe, RemembersTheLastCheckpoint) {
  Connection connection;
  connection.reporter().checkpoint("runs/a/step-1", 1);
  connection.reporter().checkpoint("runs/\xff/step-2", 2);  // a file name that is no UTF-8
  RankStatus status;
  for (const char byte : connection.sent()) status.feed({&byte, 1});
  EXPECT_EQ(status.last_checkpoint(), "runs/\xef\xbf\xbd/step-2");
}

TEST(StatusPipe, CarriesWhatBecameOfALostRanksShard) {
  using State = progress::Rescue::State;
  Connection connection;
  RankStatus status;
  connection.reporter().checkpoint("runs/a/step-1", 1);
  connection.reporter().rescue({.state = State::Saving});
  connection.reporter().rescue(
      {.state = State::Saved, .lost = 1, .step = 7, .path = "runs/a/step-7"});
  status.feed(connection.sent());
  ASSERT_TRUE(status.rescue());
  EXPECT_EQ(status.rescue()->state, State::Saved);
  EXPECT_EQ(status.rescue()->lost, 1);
  EXPECT_EQ(status.rescue()->step, 7);
  EXPECT_EQ(status.last_checkpoint(), "runs/a/step-7");
}

TEST(StatusPipe, CarriesProgressForEnginesThatShowIt) {
  Connection connection;
  progress::Progress progress;
  progress.step = 7;
  progress.loss = std::nan("");
  progress.shares = {48, 16};
  connection.reporter().progress(progress);
  connection.reporter().evaluated(2,
                                  {.loss = 0.25, .metrics = {{"accuracy", 0.875}, {"top_5", 1.0}}});
  connection.reporter().door("pc:29400");
  connection.reporter().leads();
  connection.reporter().left();
  const std::string sent = connection.sent();
  EXPECT_NE(sent.find(R"({"address":"pc:29400","event":"door"})"), std::string::npos);
  EXPECT_NE(sent.find(R"({"event":"leads"})"), std::string::npos);
  EXPECT_NE(sent.find(R"({"event":"left"})"), std::string::npos);
  EXPECT_NE(sent.find("\"event\":\"progress\""), std::string::npos);
  EXPECT_NE(sent.find("\"step\":7"), std::string::npos);
  EXPECT_NE(sent.find("\"loss\":null"), std::string::npos);
  EXPECT_NE(sent.find("\"shares\":[48,16]"), std::string::npos);
  EXPECT_NE(sent.find("\"accuracy\":0.875"), std::string::npos);
  EXPECT_NE(sent.find("\"top_5\":1.0"), std::string::npos);
  EXPECT_NE(sent.find("\"loss\":0.25"), std::string::npos);
  RankStatus status;
  status.feed(sent);  // a launcher that shows none passes over it
  EXPECT_FALSE(status.error());
}

TEST(StatusPipe, PassesOverNonsense) {
  RankStatus status;
  status.feed("hello\n[1,2]\n{\"event\":7}\n{\"event\":\"error\"\n\n");
  EXPECT_FALSE(status.error());
  EXPECT_TRUE(status.last_checkpoint().empty());
}

TEST(StatusPipe, TakesTheVariableAway) {
  Connection connection;
  EXPECT_EQ(std::getenv(kStatusVariable), nullptr);
}

TEST(StatusPipe, IsSilentWithoutALauncher) {
  StatusReporter reporter;
  EXPECT_FALSE(reporter.connected());
  reporter.failed(Error(ErrorCode::Internal, "nobody hears this"));
}

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
