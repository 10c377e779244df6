// In which order frames leave.

#include "bimetal/net/tcp/frame_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <vector>

#include "bimetal/net/tcp/byte_stream.h"

namespace bimetal::net {
namespace {

constexpr SessionKey kKey{std::byte{7}};
constexpr std::size_t kPayload = 1 << 19;

/// A writer on one end of a connection over loopback, its reader on the other.
struct Connected {
  asio::io_context io;
  asio::ip::tcp::socket out{io}, in{io};
  std::atomic<std::uint64_t> bytes{0};

  Connected() {
    asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    out.connect(acceptor.local_endpoint());
    acceptor.accept(in);
  }

  asio::awaitable<void> read(std::size_t frames, std::vector<std::uint64_t>& order) {
    ByteReader reader(in);
    Seal seal(kKey);
    std::vector<std::byte> payload(kPayload);
    for (std::size_t i = 0; i < frames; ++i) {
      EncodedHeader bytes_read;
      if (co_await reader.read(bytes_read)) co_return;
      // Throws unless the frames are numbered in the order in which they come.
      const auto header = decode_header(bytes_read, seal);
      order.push_back(header.sequence);
      if (co_await reader.read(std::span(payload).first(header.payload_bytes))) co_return;
    }
  }
};

FrameHeader numbered(std::uint64_t sequence) {
  FrameHeader header;
  header.kind = FrameKind::Data;
  header.sequence = sequence;
  return header;
}

TEST(FrameWriter, UrgentFramesPassWhatIsQueuedInTheirOrder) {
  Connected pair;
  FrameWriter writer(pair.out, kKey, {}, pair.bytes);
  const std::vector<std::byte> payload(kPayload);
  int done = 0;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    // Once the first frames are on their way: behind these, before all others.
    const auto interrupt = [&, i](const std::exception_ptr&) {
      ++done;
      if (i != 1) return;
      for (const std::uint64_t urgent : {100, 101}) {
        writer.push(numbered(urgent), {}, {}, Priority::urgent);
      }
      writer.finish();
    };
    writer.push(numbered(i), payload, interrupt);
  }
  std::vector<std::uint64_t> order;
  std::vector<std::exception_ptr> errors(2);
  asio::co_spawn(pair.io, writer.run(),
                 [&](std::exception_ptr error, std::error_code) { errors[0] = error; });
  asio::co_spawn(pair.io, pair.read(42, order),
                 [&](std::exception_ptr error) { errors[1] = error; });
  pair.io.run();
  for (const auto& error : errors) EXPECT_FALSE(error);
  EXPECT_EQ(done, 40);
  ASSERT_EQ(order.size(), 42u);
  const auto urgent = std::ranges::find(order, 100u);
  ASSERT_LT(urgent - order.begin(), 5);
  EXPECT_EQ(*(urgent + 1), 101u);
  order.erase(urgent, urgent + 2);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST(FrameWriter, EndsUrgentAndQueuedFramesWithTheError) {
  Connected pair;
  FrameWriter writer(pair.out, kKey, {}, pair.bytes);
  int failed = 0;
  const auto count = [&](const std::exception_ptr& error) { failed += error ? 1 : 0; };
  writer.push(numbered(1), {}, count);
  writer.push(numbered(2), {}, count, Priority::urgent);
  writer.fail(std::make_exception_ptr(std::runtime_error("gone")));
  EXPECT_EQ(failed, 2);
  writer.push(numbered(3), {}, count, Priority::urgent);
  EXPECT_EQ(failed, 3);
  EXPECT_TRUE(writer.idle());
}

}  // namespace
}  // namespace bimetal::net
