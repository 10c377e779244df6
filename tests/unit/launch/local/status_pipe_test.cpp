#include "bimetal/launch/local/status_pipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

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

TEST(StatusPipe, CarriesErrors) {
  Connection connection;
  ASSERT_TRUE(connection.reporter().connected());
  connection.reporter().failed(Error(ErrorCode::NotFinite, "loss of step 3:\n\"NaN\"", 1));
  RankStatus status;
  status.feed(connection.sent());
  ASSERT_TRUE(status.error());
  EXPECT_EQ(status.error()->code(), ErrorCode::NotFinite);
  EXPECT_STREQ(status.error()->what(), "loss of step 3:\n\"NaN\"");
  EXPECT_EQ(status.error()->rank(), 1);
}

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
  const std::string sent = connection.sent();
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

}  // namespace
}  // namespace bimetal::launch
