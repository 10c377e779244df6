// A peer that knows the token and then sends bytes that no Bimetal would send.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/write.hpp>
#include <future>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/dial.h"
#include "unit/net/mesh_harness.h"

namespace bimetal::net {
namespace {

using namespace net::testing;
using ::testing::HasSubstr;

/// Rank 0 is a real mesh; rank 1 is this test's own socket, past the handshake.
class BadFrames : public ::testing::Test {
 protected:
  BadFrames() {
    TcpMeshBuilder builder(0, 2, {});
    const Endpoint server = builder.listening().front();
    auto dialing = std::async(std::launch::async, [&] { dial_as_rank_one(server); });
    mesh_ = std::move(builder).connect({{server}, {server}}, soon());
    dialing.get();
    mesh_->start(recorder_);
  }

  void dial_as_rank_one(const Endpoint& server) {
    DialRequest request{{server}, "rank 0", Token(), {}, soon()};
    request.hello.from_rank = 1;
    request.hello.to_rank = 0;
    request.hello.job = digest_of_job("");
    std::exception_ptr failure;
    asio::co_spawn(
        io_, [&]() -> asio::awaitable<void> { peer_.emplace(co_await dial(request)); },
        [&](std::exception_ptr error) { failure = error; });
    io_.run();
    if (failure) std::rethrow_exception(failure);
    seal_.emplace(peer_->keys.client_to_server);
  }

  void write(std::span<const std::byte> bytes) {
    std::error_code ignored;  // the mesh may hang up at the first bad byte
    asio::write(peer_->socket, asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  EncodedHeader header(FrameKind kind, std::uint64_t payload) {
    FrameHeader header;
    header.kind = kind;
    header.payload_bytes = payload;
    return encode_header(header, *seal_);
  }
  EncodedHeader sealed(const std::string& payload) {
    FrameHeader header;
    header.payload_bytes = payload.size();
    seal_payload(header, bytes_of(payload), *seal_);
    return encode_header(header, *seal_);
  }

  void expect_loss(ErrorCode code, const std::string& message) {
    const auto loss = recorder_.wait_for_loss(1);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->code(), code);
    EXPECT_EQ(loss->rank(), 1);
    EXPECT_THAT(loss->what(), HasSubstr("rank 1"));
    EXPECT_THAT(loss->what(), HasSubstr(message));
    mesh_->close(soon());
    EXPECT_EQ(recorder_.losses(1), 1);
  }

  asio::io_context io_;
  std::optional<DialedConnection> peer_;
  std::optional<Seal> seal_;
  Recorder recorder_;
  std::unique_ptr<Mesh> mesh_;
};

TEST_F(BadFrames, GoodOnesArriveFirst) {
  write(header(FrameKind::Heartbeat, 0));
  write(header(FrameKind::Data, 5));
  write(bytes_of("hello"));
  write(header(FrameKind::Abort, 3));
  write(bytes_of("why"));
  ASSERT_TRUE(recorder_.wait_for(2));
  EXPECT_EQ(recorder_.arrivals()[0].payload, "hello");
  EXPECT_EQ(recorder_.arrivals()[1].header.kind, FrameKind::Abort);
  write(header(FrameKind::Goodbye, 0));
  mesh_->close(soon());
  EXPECT_EQ(recorder_.losses(1), 0);
}

TEST_F(BadFrames, OneSentTwiceIsDeliveredOnce) {
  const auto bytes = header(FrameKind::Data, 5);
  for (int i = 0; i < 2; ++i) {
    write(bytes);
    write(bytes_of("hello"));
  }
  expect_loss(ErrorCode::CorruptData, "not the one sent next");
  EXPECT_EQ(recorder_.arrivals().size(), 1u);
}

TEST_F(BadFrames, OneLeftOutIsMissed) {
  header(FrameKind::Data, 5);  // never sent
  write(header(FrameKind::Data, 5));
  write(bytes_of("hello"));
  expect_loss(ErrorCode::CorruptData, "not the one sent next");
  EXPECT_TRUE(recorder_.arrivals().empty());
}

TEST_F(BadFrames, OnesInAnotherOrderAreNoticed) {
  const auto first = header(FrameKind::Data, 0);
  write(header(FrameKind::Data, 0));
  write(first);
  expect_loss(ErrorCode::CorruptData, "not the one sent next");
  EXPECT_TRUE(recorder_.arrivals().empty());
}

TEST_F(BadFrames, SealedPayloadsArriveAsTheyWereMade) {
  write(sealed("what is worth it"));
  write(bytes_of("what is worth it"));
  ASSERT_TRUE(recorder_.wait_for(1));
  EXPECT_EQ(recorder_.arrivals()[0].payload, "what is worth it");
  write(sealed("what is worth it"));
  write(bytes_of("what is w0rth it"));
  expect_loss(ErrorCode::CorruptData, "payload fails its checksum");
  EXPECT_EQ(recorder_.arrivals().size(), 1u);
}

// Both are what this side has sealed, under keys of this connection; only their places differ.
TEST_F(BadFrames, PayloadsOfTwoFramesChangedRound) {
  const auto first = sealed("lease 17: samples 0 to 63");
  const auto second = sealed("lease 18: samples 64 to 9");
  write(first);
  write(bytes_of("lease 18: samples 64 to 9"));
  write(second);
  write(bytes_of("lease 17: samples 0 to 63"));
  expect_loss(ErrorCode::CorruptData, "payload fails its checksum");
  EXPECT_TRUE(recorder_.arrivals().empty());
}

TEST_F(BadFrames, ASealCannotBeTakenOff) {
  auto bytes = sealed("what is worth it");
  bytes[6] &= std::byte{0x7f};
  write(bytes);
  write(bytes_of("what is worth 1t"));
  expect_loss(ErrorCode::CorruptData, "checksum");
}

TEST_F(BadFrames, AnotherVersion) {
  auto bytes = header(FrameKind::Data, 5);
  bytes[4] = std::byte{kProtocolVersion + 1};
  write(bytes);
  expect_loss(ErrorCode::ProtocolMismatch, "version 4");
}

TEST_F(BadFrames, SomethingElse) {
  write(bytes_of(
      "GET / HTTP/1.1\r\nHost: example.org\r\nAccept: everything there is at all\r\n\r\n"));
  expect_loss(ErrorCode::ProtocolMismatch, "no Bimetal frame");
}

TEST_F(BadFrames, OwnFramesSentBack) {
  FrameHeader own;
  own.kind = FrameKind::Goodbye;
  Seal theirs(peer_->keys.server_to_client);
  write(encode_header(own, theirs));
  expect_loss(ErrorCode::CorruptData, "checksum");
}

TEST_F(BadFrames, HeartbeatWithPayload) {
  write(header(FrameKind::Heartbeat, 1));
  expect_loss(ErrorCode::CorruptData, "without payload");
}

TEST_F(BadFrames, StreamEndsWithinAHeader) {
  const auto bytes = header(FrameKind::Data, 5);
  write(std::span(bytes).first(30));
  peer_->socket.close();
  expect_loss(ErrorCode::PeerLost, "is gone");
}

TEST_F(BadFrames, StreamEndsWithinAPayload) {
  write(header(FrameKind::Data, 5));
  write(bytes_of("hel"));
  peer_->socket.close();
  expect_loss(ErrorCode::PeerLost, "is gone");
  EXPECT_TRUE(recorder_.arrivals().empty());
}

}  // namespace
}  // namespace bimetal::net
