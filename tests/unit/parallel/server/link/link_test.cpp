// The fate of messages that somebody alters between a client and a server of a job.

#include "bimetal/parallel/server/link/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/link/link_server.h"
#include "support/errors.h"
#include "support/tcp_proxy.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::seconds;

const Credentials kCredentials{net::Token::from_text("the token of this test"),
                               net::Encryption::off, "job"};
constexpr std::uint64_t kLease = 0x74657374206c6561;  // text, as the proxy looks for it

/// Answers a join with a lease, and a snapshot with a long state.
class Session final : public LinkServer::Session {
 public:
  explicit Session(Link& link) : link_(link) {}
  std::span<std::byte> place(const net::FrameHeader&) override { return {}; }
  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) override {
    if (static_cast<MessageKind>(header.operation) == MessageKind::join) {
      host = decode_join(body).host;
      Lease lease;
      lease.id = kLease;
      lease.count = 1;
      link_.send(MessageKind::lease, {}, encode(lease));
    } else {
      auto state = std::make_shared<Body>(100'000, std::byte{'s'});
      std::ranges::copy(kMoments, reinterpret_cast<char*>(state->data()) + 50'000);
      link_.send_bulk(MessageKind::state, {}, *state, state);
    }
  }
  static constexpr std::string_view kMoments = "moments of the optimizer";
  static inline std::string host;  ///< of who has joined last

 private:
  Link& link_;
};

class Worker final : public LinkClient {
 public:
  using LinkClient::LinkClient;
  std::span<std::byte> place(const net::FrameHeader& header) override {
    state_.resize(header.payload_bytes);
    return state_;
  }
  /// The lease's number.
  std::uint64_t join() {
    Join own;
    own.host = "a worker's machine";
    link().send(MessageKind::join, {}, encode(own));
    answer();
    return decode_lease(body_).id;
  }
  std::size_t fetch_state() {
    link().send(MessageKind::snapshot, {});
    answer();
    return state_.size();
  }

 private:
  void answer() {
    answered_ = false;
    wait(Deadline::after(seconds(30)), [this] { return answered_; });
  }
  void on_answer(const net::FrameHeader&, std::span<const std::byte> body) override {
    body_.assign(body.begin(), body.end());
    answered_ = true;
  }
  Body state_, body_;
  bool answered_ = false;
};

/// Fails in the middle of its own work, as one whose disk breaks.
class Failing final : public LinkServer::Session {
 public:
  std::span<std::byte> place(const net::FrameHeader&) override { return {}; }
  void on_message(const net::FrameHeader&, std::span<const std::byte>) override { asked_ = true; }
  void on_tick() override {
    if (asked_) throw std::runtime_error("something odd");
  }

 private:
  bool asked_ = false;
};

TEST(LinkServer, WhatASessionThrowsEndsItsClientAlone) {
  LinkServer server({"127.0.0.1", 0}, kCredentials, seconds(30),
                    [](Link&) { return std::make_unique<Failing>(); });
  for (int i = 0; i < 2; ++i) {
    Worker worker("server 0");
    worker.connect(server.endpoint(), kCredentials, Deadline::after(seconds(30)));
    expect_error(ErrorCode::Internal, {"something odd"}, [&] { worker.join(); });
  }
}

class AlteredMessages : public ::testing::Test {
 protected:
  /// After one round without it, joins and fetches while the proxy alters `text`.
  void expect_noticed(const std::string& text, const std::string& message) {
    bimetal::testing::TcpProxy proxy(server_.endpoint());
    Worker worker("server 0 at " + net::to_string(proxy.endpoint()));
    worker.connect(proxy.endpoint(), kCredentials, Deadline::after(seconds(30)));
    EXPECT_EQ(worker.join(), kLease);
    EXPECT_EQ(Session::host, "a worker's machine");
    EXPECT_EQ(worker.fetch_state(), 100'000u);
    proxy.alter(text);
    expect_error(ErrorCode::CorruptData, {"server 0 at 127.0.0.1", message}, [&] {
      worker.join();
      worker.fetch_state();
    });
    EXPECT_EQ(Session::host, "a worker's machine");
  }

  LinkServer server_{{"127.0.0.1", 0}, kCredentials, seconds(30), [](Link& link) {
                       return std::make_unique<Session>(link);
                     }};
};

TEST_F(AlteredMessages, LeaseOnItsWayToAWorker) {
  expect_noticed(std::string(reinterpret_cast<const char*>(&kLease), sizeof(kLease)), "is lost");
}

TEST_F(AlteredMessages, JoinOnItsWayToTheServer) {
  expect_noticed("a worker's machine", "refuses");
}

TEST_F(AlteredMessages, StateOnItsWayToTheCoordinator) {
  expect_noticed(std::string(Session::kMoments), "is lost");
}

TEST(Patience, BeyondOneHostIsTheKeyOfAllConnections) {
  using std::chrono::milliseconds;
  const auto told = [](std::optional<milliseconds> peer_timeout, bool stays_on_host) {
    const auto patience = patience_for(peer_timeout, milliseconds(60'000), stays_on_host);
    return std::to_string(patience.time.count()) + " " + std::string(patience.set_by);
  };
  EXPECT_EQ(told({}, false), "10000 fabric.peer_timeout_s");
  EXPECT_EQ(told({}, true), "60000 parallel.timeout_s");
  EXPECT_EQ(told(milliseconds(3000), false), "3000 fabric.peer_timeout_s");
  EXPECT_EQ(told(milliseconds(3000), true), "3000 fabric.peer_timeout_s");
}

// A long message is on its way from one end of a connection to the other, plain or encrypted: its
// bytes are signs of life, and nothing is written into the receiver's memory once it has hung up.
using asio::ip::tcp;
using std::chrono::milliseconds;

constexpr std::size_t kMessage = std::size_t{32} << 20;
constexpr std::byte kWritten{0xff};

net::SessionKeys session_keys(bool encrypted) {
  net::SessionKeys keys;
  if (!encrypted) return keys;
  net::noise::Key up{}, down{};
  up.fill(std::byte{1});
  down.fill(std::byte{2});
  keys.ciphers =
      net::noise::Handshake::Ciphers{net::noise::CipherState(up), net::noise::CipherState(down)};
  return keys;
}

/// Takes messages in, or says what became of the connection.
struct End final : LinkHandler {
  std::span<std::byte> place(const net::FrameHeader& header) override {
    memory.resize(header.payload_bytes);
    return memory;
  }
  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) override {
    ++messages;
    if (static_cast<MessageKind>(header.operation) == MessageKind::refused) {
      refusal = decode_refused(body).what();
    }
  }
  void on_closed(const Error& why) override { closed = why.what(); }

  /// The written part of the message that is being read: bytes come in their order.
  std::size_t written() const {
    const auto here = [](std::byte byte) { return byte == kWritten; };
    return static_cast<std::size_t>(std::ranges::partition_point(memory, here) - memory.begin());
  }

  std::vector<std::byte> memory;
  int messages = 0;
  std::optional<std::string> refusal, closed;
};

class LongMessage : public ::testing::TestWithParam<bool> {
 protected:
  LongMessage() {
    tcp::acceptor acceptor(io_, {asio::ip::make_address("127.0.0.1"), 0});
    tcp::socket near(io_), far(io_);
    near.connect(acceptor.local_endpoint());
    acceptor.accept(far);
    const auto keys = session_keys(GetParam());
    sender_ = std::make_shared<Link>(std::move(near), keys, Link::Side::client, bytes_sent_);
    receiver_ = std::make_shared<Link>(std::move(far), keys, Link::Side::server, bytes_sent_);
    sender_->start(at_sender_);
    receiver_->start(*at_receiver_);
    const auto body = std::make_shared<const Body>(kMessage, kWritten);
    sender_->send_bulk(MessageKind::state, {}, *body, body);
  }
  ~LongMessage() override {
    sender_->close();
    receiver_->close();
    io_.run_for(seconds(1));
  }

  template <typename Condition>
  void run_until(const Condition& condition) {
    for (const auto deadline = Deadline::after(seconds(60)); !condition();) {
      ASSERT_FALSE(deadline.expired());
      io_.run_one_until(deadline.time());
    }
  }
  /// A part of the message has come, and no more than a part.
  void run_into_the_midst() {
    run_until([&] { return at_receiver_->written() > 0; });
    ASSERT_LT(at_receiver_->written(), kMessage);
  }
  void run_out() {
    for (const auto deadline = Deadline::after(milliseconds(500)); !deadline.expired();) {
      io_.run_one_until(deadline.time());
    }
  }

  asio::io_context io_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  End at_sender_;
  std::unique_ptr<End> at_receiver_ = std::make_unique<End>();
  std::shared_ptr<Link> sender_, receiver_;
};

TEST_P(LongMessage, ItsBytesAreSignsOfLife) {
  run_into_the_midst();
  const auto before = receiver_->heard();
  const auto so_far = at_receiver_->written();
  run_until([&] { return at_receiver_->written() > so_far; });
  EXPECT_EQ(at_receiver_->messages, 0) << "it is still on its way";
  EXPECT_GT(receiver_->heard(), before);
}

TEST_P(LongMessage, HeartbeatsAfterItAreSignsOfLife) {
  run_until([&] { return at_receiver_->messages == 1; });
  const auto before = receiver_->heard();
  run_until([&] { return receiver_->heard() > before; });
}

TEST_P(LongMessage, IsNotWrittenOnOnceItIsRefused) {
  run_into_the_midst();
  receiver_->refuse(Error(ErrorCode::Aborted, "not now"));
  ASSERT_TRUE(at_receiver_->closed);
  const auto so_far = at_receiver_->written();
  run_out();
  EXPECT_EQ(at_receiver_->written(), so_far);
}

/// As a server does with a session that has ended; AddressSanitizer tells whether it was too early.
TEST_P(LongMessage, IsRefusedByOneThatIsFreed) {
  run_into_the_midst();
  receiver_->refuse(Error(ErrorCode::Aborted, "not now"));
  at_receiver_.reset();
  run_until([&] { return at_sender_.refusal.has_value(); });
  EXPECT_EQ(*at_sender_.refusal, "not now");
  run_until([&] { return at_sender_.closed.has_value(); });
}

INSTANTIATE_TEST_SUITE_P(PlainAndEncrypted, LongMessage, ::testing::Bool());

}  // namespace
}  // namespace bimetal::parallel::server
