// What becomes of messages that somebody alters between a client and a server of a job.

#include "bimetal/parallel/server/link/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/link/link_server.h"
#include "bimetal/parallel/server/link/silence.h"
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

}  // namespace
}  // namespace bimetal::parallel::server
