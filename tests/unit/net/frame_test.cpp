#include "bimetal/net/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/byte_stream.h"

namespace bimetal::net {
namespace {

SessionKey some_key(std::uint8_t seed = 1) {
  SessionKey key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(seed + 7 * i);
  return key;
}

/// Every field with a value of its own, the wide ones using all their bytes.
FrameHeader some_header() {
  FrameHeader header;
  header.kind = FrameKind::Abort;
  header.operation = 2;
  header.dtype = 3;
  header.reduce_op = 4;
  header.compression = 0x31;
  header.group = 0x05060708;
  header.epoch = 0x090a0b0c;
  header.sequence = 0x0d0e0f1011121314;
  header.count = 0x15161718191a1b1c;
  header.root = -2;
  header.part = 0x1d1e1f20;
  header.compression_detail = 0x292a2b2c;
  header.payload_bytes = 0x2122232425262728;
  header.sealed = true;
  header.payload_sum = 0x3132333435363738;
  return header;
}

/// As the frame after `before` others.
EncodedHeader encoded(const FrameHeader& header, const SessionKey& key, int before = 0) {
  Seal seal(key);
  while (before-- > 0) seal.sum_next_head({});
  return encode_header(header, seal);
}
FrameHeader decoded(const EncodedHeader& bytes, const SessionKey& key, int before = 0) {
  Seal seal(key);
  while (before-- > 0) seal.sum_next_head({});
  return decode_header(bytes, seal);
}

std::optional<ErrorCode> failure_of(const EncodedHeader& bytes, const SessionKey& key) {
  try {
    decoded(bytes, key);
    return std::nullopt;
  } catch (const Error& error) {
    return error.code();
  }
}

TEST(Frame, ExtremesComeBack) {
  FrameHeader header;
  header.sequence = header.count = header.payload_bytes = std::numeric_limits<std::uint64_t>::max();
  header.root = std::numeric_limits<std::int32_t>::min();
  EXPECT_EQ(decoded(encoded(header, some_key()), some_key()), header);
}

// The layout is a promise to other builds and languages: docs/protocol.md gives this table.
TEST(Frame, LayoutIsTheDocumentedOne) {
  const auto bytes = encoded(some_header(), some_key());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "BMTL");
  EXPECT_EQ(static_cast<int>(bytes[4]), kProtocolVersion);
  // kind and sealed, operation, dtype, reduce_op, compression, group, epoch, root, sequence
  // (twice), count, payload_bytes, part, compression_detail, payload_sum
  constexpr int kAt[] = {6, 7, 8, 9, 10, 12, 16, 20, 24, 31, 32, 40, 48, 52, 56};
  constexpr int kExpected[] = {0x83, 0x02, 0x03, 0x04, 0x31, 0x08, 0x0c, 0xfe,
                               0x14, 0x0d, 0x1c, 0x28, 0x20, 0x2c, 0x38};
  for (std::size_t i = 0; i < std::size(kAt); ++i) {
    EXPECT_EQ(static_cast<int>(bytes[static_cast<std::size_t>(kAt[i])]), kExpected[i]) << kAt[i];
  }
  EXPECT_EQ(bytes.size(), 72u);
}

TEST(Frame, EveryDamagedBitIsNoticed) {
  const auto good = encoded(some_header(), some_key());
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(1 << bit);
      const auto expected = i < 6 ? ErrorCode::ProtocolMismatch : ErrorCode::CorruptData;
      EXPECT_EQ(failure_of(bad, some_key()), expected) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(Frame, OnlyTheOneSentNextFits) {
  const auto third = encoded(some_header(), some_key(), 2);
  EXPECT_EQ(decoded(third, some_key(), 2), some_header());
  for (const int number : {0, 1, 3}) {
    EXPECT_THROW(decoded(third, some_key(), number), Error);
  }
}

TEST(Frame, AnotherConnectionsKeyDoesNotFit) {
  EXPECT_EQ(failure_of(encoded(some_header(), some_key(1)), some_key(2)), ErrorCode::CorruptData);
}

std::vector<std::byte> some_payload(std::size_t size) {
  std::vector<std::byte> payload(size);
  for (std::size_t i = 0; i < size; ++i) payload[i] = static_cast<std::byte>(i * 31 + size);
  return payload;
}

TEST(SealedPayload, EveryDamagedBitIsNoticed) {
  const Seal seal(some_key());
  FrameHeader header;
  auto payload = some_payload(kAlwaysSealedBytes);
  seal_payload(header, payload, seal);
  ASSERT_TRUE(header.sealed);
  EXPECT_NO_THROW(check_payload(header, payload, seal));
  for (std::size_t i = 0; i < payload.size(); ++i) {
    payload[i] ^= static_cast<std::byte>(1 << (i % 8));
    EXPECT_THROW(check_payload(header, payload, seal), Error) << "byte " << i;
    payload[i] ^= static_cast<std::byte>(1 << (i % 8));
  }
  EXPECT_THROW(check_payload(header, payload, Seal(some_key(2))), Error);
}

TEST(SealedPayload, BulkIsLeftToTcpUnlessTheHeaderAsks) {
  const Seal seal(some_key());
  const auto bulk = some_payload(kAlwaysSealedBytes + 1);
  FrameHeader tensor, text, abort, empty;
  text.sealed = empty.sealed = true;
  abort.kind = FrameKind::Abort;
  for (auto* header : {&tensor, &text, &abort}) seal_payload(*header, bulk, seal);
  seal_payload(empty, {}, seal);
  EXPECT_FALSE(tensor.sealed);
  EXPECT_TRUE(text.sealed);
  EXPECT_TRUE(abort.sealed);
  EXPECT_FALSE(empty.sealed);
}

// A body's sum is on the wire for all to see: it must be good for nothing but that body.
TEST(SealedPayload, SumOfABodyIsNoSumOfAHeader) {
  auto forged = encoded(some_header(), some_key());
  std::vector<std::byte> body(forged.begin(), forged.begin() + 64);
  body.resize(72);  // and the number 0, as a header is summed
  FrameHeader carrier;
  seal_payload(carrier, body, Seal(some_key()));
  for (std::size_t i = 0; i < 8; ++i) {
    forged[64 + i] = static_cast<std::byte>(carrier.payload_sum >> (8 * i));
  }
  EXPECT_EQ(failure_of(forged, some_key()), ErrorCode::CorruptData);
}

TEST(Frame, UnknownKindIsRefusedThoughSigned) {
  for (const int kind : {0, 6, 255}) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(kind);
    EXPECT_EQ(failure_of(encoded(header, some_key()), some_key()), ErrorCode::CorruptData);
  }
}

// The order in which frames leave.
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
