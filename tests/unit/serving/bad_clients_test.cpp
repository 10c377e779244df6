// Clients that know the token and say what makes no sense, or go in the middle: nobody else
// suffers.

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/use_future.hpp>
#include <asio/write.hpp>
#include <future>
#include <list>

#include "bimetal/net/link/session.h"
#include "bimetal/net/tcp/dial.h"
#include "unit/serving/sum_server.h"

namespace bimetal::serving {
namespace {

using namespace testing;

class BadClients : public SumServer {};

// ----------------------------------------------------------------------

/// A connection whose frames are sent and read one by one.
struct RawSession final : net::FrameSession {
  RawSession(asio::ip::tcp::socket connected, const net::SessionKeys& keys)
      : FrameSession(std::move(connected), keys, net::Side::client, {}) {}
  asio::awaitable<void> read_messages() override { co_return; }
  void on_ended(const Error&) override {}
  using FrameSession::next_frame;
  using FrameSession::receive;
  using FrameSession::socket;
  using FrameSession::writer;
};

/// Knows the token, and says whatever it likes.
class RawClient {
 public:
  RawClient(const net::Endpoint& server, const net::Token& token) {
    net::DialRequest request{.addresses = {server},
                             .name = "the server",
                             .token = token,
                             .hello = {},
                             .deadline = in_half_a_minute()};
    request.hello.service = net::Service::Predictions;
    auto connected = asio::co_spawn(io_, connect(std::move(request)), asio::use_future);
    io_.run();
    connected.get();
    asio::co_spawn(io_, write(), asio::detached);
    EXPECT_EQ(next().first, MessageKind::welcome);
  }
  ~RawClient() {
    wire_->close();
    io_.restart();
    io_.run();
  }

  void send(MessageKind kind, std::uint64_t count, const Pixels& payload,
            comm::DType dtype = comm::DType::uint8, std::uint64_t sequence = 1) {
    net::FrameHeader header;
    header.operation = static_cast<std::uint8_t>(kind);
    header.sequence = sequence;
    header.count = count;
    header.dtype = static_cast<std::uint8_t>(dtype);
    kept_.push_back(payload);
    wire_->writer().push(header, std::as_bytes(std::span(kept_.back())), {});
  }

  std::pair<MessageKind, Body> next() {
    auto told = asio::co_spawn(io_, read(), asio::use_future);
    run_until([&] { return told.wait_for(milliseconds(0)) == std::future_status::ready; });
    return told.get();
  }

 private:
  template <typename Condition>
  void run_until(Condition condition) {
    io_.restart();
    for (const auto deadline = in_half_a_minute(); !condition() && !deadline.expired();) {
      io_.run_one_for(milliseconds(50));
    }
  }
  asio::awaitable<void> connect(net::DialRequest request) {
    auto dialed = co_await net::dial(std::move(request));
    keys_ = dialed.keys;
    wire_ = std::make_shared<RawSession>(std::move(dialed.socket), keys_);
  }
  asio::awaitable<void> write() { co_await wire_->writer().run(); }
  asio::awaitable<std::pair<MessageKind, Body>> read() {
    const auto header = co_await wire_->next_frame();
    Body body(header.payload_bytes);
    co_await wire_->receive(header, body);
    co_return std::pair(static_cast<MessageKind>(header.operation), std::move(body));
  }

  asio::io_context io_{1};
  net::SessionKeys keys_;
  std::shared_ptr<RawSession> wire_;
  std::list<Pixels> kept_;
};

TEST_F(BadClients, BadRequestsAreRefusedAndGoodOnesOfTheSameClientAnswered) {
  serve();
  RawClient raw(server_->endpoint(), options_.token);
  const auto refused = [&](const std::string& text) {
    const auto [kind, body] = raw.next();
    EXPECT_EQ(kind, MessageKind::refused);
    EXPECT_THAT(decode_refused(body).what(), HasSubstr(text));
  };
  raw.send(MessageKind::predict, 2, Pixels(11));
  refused("2 samples of uint8 are 12 bytes, not 11");
  raw.send(MessageKind::predict, 0, {});
  refused("a request has from 1 to");
  raw.send(MessageKind::predict, ~std::uint64_t{0}, Pixels(6));
  refused("a request has from 1 to");
  raw.send(MessageKind::predict, std::uint64_t{1} << 61, Pixels(6), comm::DType::float64);
  refused("a request has from 1 to");
  raw.send(MessageKind::predict, 1, Pixels(48), comm::DType::int64);
  refused("samples must be uint8");
  raw.send(MessageKind::predict, 1, Pixels(6), static_cast<comm::DType>(200));
  refused("samples must be uint8");
  raw.send(MessageKind::predict, 2, Pixels(12, 1));
  const auto [kind, body] = raw.next();
  EXPECT_EQ(kind, MessageKind::predicted);
  EXPECT_EQ(decode_predicted(body, 4).logits, (std::vector<double>{6, -6, 6, -6}));
  EXPECT_EQ(server_->figures().refused, 6u);
}

TEST_F(BadClients, WhatMakesNoSenseEndsTheConnectionAlone) {
  serve();
  for (const auto kind : {MessageKind::welcome, MessageKind::predicted, MessageKind::refused,
                          MessageKind::figures, static_cast<MessageKind>(77)}) {
    RawClient raw(server_->endpoint(), options_.token);
    raw.send(kind, 1, Pixels(6));
    const auto [answer, body] = raw.next();
    EXPECT_EQ(answer, MessageKind::refused);
    EXPECT_EQ(decode_refused(body).code(), ErrorCode::CorruptData);
    EXPECT_THROW(raw.next(), std::system_error) << "it has hung up";
  }
  expect_served();
}

TEST_F(BadClients, AHugeRequestIsNotEvenRead) {
  serve();
  RawClient raw(server_->endpoint(), options_.token);
  raw.send(MessageKind::predict, 1, Pixels(kMaxRequestBytes + 1));
  const auto [kind, body] = raw.next();
  EXPECT_EQ(kind, MessageKind::refused);
  EXPECT_THAT(decode_refused(body).what(), HasSubstr("at most 16777216 are taken"));
  expect_served();
}

}  // namespace
}  // namespace bimetal::serving
