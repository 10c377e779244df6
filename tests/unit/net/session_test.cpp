// How a session ends: by a refusal that the other side gets to read, in silence, or for lack of
// patience; and that it lives until then without anybody's holding it.

#include "bimetal/net/link/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/io_context.hpp>
#include <asio/write.hpp>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::net {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The events of a session, beyond its end.
struct Story {
  std::vector<std::string> messages;
  std::vector<std::string> ends;
};

/// A message is its text.
class TextSession final : public FrameSession {
 public:
  TextSession(tcp::socket connected, Side side, Story& story, bool tells, milliseconds to_part)
      : FrameSession(std::move(connected), {}, side, {.to_part = to_part}),
        story_(story),
        tells_(tells) {}

  void say(const std::string& text) {
    const auto kept = std::make_shared<const std::string>(text);
    writer().push({}, std::as_bytes(std::span(*kept)), [kept](const std::exception_ptr&) {});
  }
  using FrameSession::beat;
  using FrameSession::socket;

 private:
  asio::awaitable<void> read_messages() override {
    while (is_open()) {
      const auto header = co_await next_frame();
      std::vector<std::byte> body(header.payload_bytes);
      co_await receive(header, body);
      story_.messages.emplace_back(reinterpret_cast<const char*>(body.data()), body.size());
    }
  }
  bool tell(const Error& why) override {
    if (tells_) say(why.what());
    return tells_;
  }
  void on_ended(const Error& why) override { story_.ends.emplace_back(why.what()); }

  Story& story_;
  const bool tells_;
};

class TwoSessions : public ::testing::Test {
 protected:
  ~TwoSessions() override {
    for (const auto& session : {session_, far_session_}) {
      if (session) session->close();
    }
    io_.restart();
    io_.run_for(seconds(1));
  }
  void connect(bool tells, milliseconds to_part = seconds(60)) {
    tcp::acceptor acceptor(io_, {asio::ip::make_address("127.0.0.1"), 0});
    tcp::socket here(io_);
    far_.connect(acceptor.local_endpoint());
    acceptor.accept(here);
    session_ = std::make_shared<TextSession>(std::move(here), Side::server, story_, tells, to_part);
    session_->start();
  }
  void start_far() {
    far_session_ = std::make_shared<TextSession>(std::move(far_), Side::client, far_story_, false,
                                                 milliseconds(0));
    far_session_->start();
  }
  template <typename Condition>
  void run_until(const Condition& condition) {
    for (const auto deadline = Deadline::after(seconds(60)); !condition();) {
      ASSERT_FALSE(deadline.expired());
      io_.restart();
      io_.run_one_for(milliseconds(10));
    }
  }

  asio::io_context io_;
  tcp::socket far_{io_};
  Story story_, far_story_;
  std::shared_ptr<TextSession> session_, far_session_;
};

TEST_F(TwoSessions, WhatIsQueuedAndTheReasonArriveBeforeTheEnd) {
  connect(true);
  start_far();
  session_->say("one");
  session_->say(std::string(std::size_t{4} << 20, 'x'));
  session_->refuse(Error(ErrorCode::Aborted, "enough"));
  session_->refuse(Error(ErrorCode::Aborted, "enough and enough"));
  EXPECT_FALSE(session_->is_open());
  EXPECT_THAT(story_.ends, ElementsAre("enough"));
  const std::weak_ptr<TextSession> session = session_;
  session_.reset();
  run_until([&] { return session.expired(); });
  ASSERT_EQ(far_story_.messages.size(), 3u);
  EXPECT_EQ(far_story_.messages[0], "one");
  EXPECT_EQ(far_story_.messages[2], "enough");
  EXPECT_THAT(far_story_.ends, ElementsAre("it closed the connection"));
  EXPECT_THAT(story_.ends, ElementsAre("enough"));
}

TEST_F(TwoSessions, WhoDoesNotHangUpIsHungUpOn) {
  connect(true, milliseconds(30));
  session_->refuse(Error(ErrorCode::Aborted, "enough"));
  EXPECT_FALSE(session_->closed());
  const std::weak_ptr<TextSession> session = session_;
  session_.reset();
  run_until([&] { return session.expired(); });
}

TEST_F(TwoSessions, WhereNothingCanBeToldItEndsAtOnce) {
  connect(false);
  session_->refuse(Error(ErrorCode::Aborted, "enough"));
  EXPECT_TRUE(session_->closed());
  EXPECT_THAT(story_.ends, ElementsAre("enough"));
}

TEST_F(TwoSessions, CloseIsReportedToTheOtherSideAlone) {
  connect(true);
  start_far();
  session_->close();
  run_until([&] { return !far_story_.ends.empty(); });
  const std::weak_ptr<TextSession> session = session_;
  session_.reset();
  run_until([&] { return session.expired(); });
  EXPECT_THAT(story_.ends, ElementsAre());
}

TEST_F(TwoSessions, BytesThatAreNoFrameAreRefused) {
  connect(true);
  const std::string noise(kFrameHeaderBytes, '?');
  asio::write(far_, asio::buffer(noise));
  run_until([&] { return !story_.ends.empty(); });
  EXPECT_THAT(story_.ends[0], HasSubstr("magic"));
  start_far();
  run_until([&] { return !far_story_.ends.empty(); });
  EXPECT_EQ(far_story_.messages, story_.ends);
}

TEST_F(TwoSessions, HeartbeatsAreHeardAndAreNoMessages) {
  connect(true);
  start_far();
  const auto before = session_->heard();
  run_until([&] { return TextSession::Clock::now() > before; });
  far_session_->beat();
  run_until([&] { return session_->heard() > before; });
  far_session_->say("alive");
  run_until([&] { return !story_.messages.empty(); });
  EXPECT_THAT(story_.messages, ElementsAre("alive"));
}

}  // namespace
}  // namespace bimetal::net
