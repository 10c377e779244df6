// A long message is on its way from one end of a connection to the other, plain or encrypted: its
// bytes are signs of life, and nothing is written into the receiver's memory once it has hung up.

#include "bimetal/parallel/server/link/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace bimetal::parallel::server {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;

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

  /// Of the message that is being read: bytes come in their order.
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
