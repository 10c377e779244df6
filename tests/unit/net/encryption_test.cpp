// Encrypted connections: between two ranks, with a bad network in between, and the record format.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/write.hpp>
#include <cstdlib>
#include <future>
#include <list>
#include <mutex>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/handshake.h"
#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/net/token.h"
#include "support/errors.h"
#include "support/tcp_proxy.h"
#include "unit/net/mesh_harness.h"
#include "unit/net/raw_socket.h"

namespace bimetal::net {
namespace {

using namespace std::chrono_literals;
using namespace net::testing;
using bimetal::testing::TcpProxy;
using ::testing::HasSubstr;

TcpMeshOptions options_of(Encryption encryption) {
  TcpMeshOptions options;
  options.token = Token::from_text("the token of this job");
  options.encryption = encryption;
  return options;
}

std::string patterned(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + (i >> 8) + size);
  return text;
}

/// Two ranks, of which rank 1 reaches rank 0 through a proxy.
class Proxied : public ::testing::Test {
 protected:
  void connect(Encryption encryption) {
    TcpMeshBuilder zero(0, 2, options_of(encryption)), one(1, 2, options_of(encryption));
    proxy_.emplace(zero.listening().front());
    proxy_->filter(
        [this](TcpProxy::Direction direction, std::uint64_t offset, std::span<char> bytes) {
          std::lock_guard lock(mutex_);
          if (direction == TcpProxy::Direction::to_server) {
            seen_.append(bytes.data(), bytes.size());
            if (damaged_at_ >= offset && damaged_at_ < offset + bytes.size()) {
              bytes[damaged_at_ - offset] ^= 1;
            }
          }
        });
    const std::vector<std::vector<Endpoint>> endpoints{{proxy_->endpoint()}, one.listening()};
    auto other =
        std::async(std::launch::async, [&] { return std::move(one).connect(endpoints, soon()); });
    zero_ = std::move(zero).connect(endpoints, soon());
    one_ = other.get();
    zero_->start(at_zero_);
    one_->start(at_one_);
  }

  /// Flips a bit of what passes that many bytes further on.
  void damage(std::uint64_t ahead) {
    std::lock_guard lock(mutex_);
    damaged_at_ = seen_.size() + ahead;
  }
  std::string seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }

  std::mutex mutex_;
  std::string seen_;
  std::uint64_t damaged_at_ = std::uint64_t(-1);
  std::optional<TcpProxy> proxy_;
  Recorder at_zero_, at_one_;
  std::unique_ptr<Mesh> zero_, one_;
};

TEST_F(Proxied, WhatIsSentCanBeReadOnThePathUnlessItIsEncrypted) {
  const std::string secret = "gradients of a model that is nobody's business";
  for (const auto encryption : {Encryption::off, Encryption::on}) {
    connect(encryption);
    EXPECT_EQ(send_and_wait(*one_, 0, secret), nullptr);
    EXPECT_EQ(send_and_wait(*zero_, 1, secret), nullptr);
    ASSERT_TRUE(at_zero_.wait_for(encryption == Encryption::off ? 1 : 2));
    EXPECT_EQ(at_zero_.arrivals().back().payload, secret);
    EXPECT_EQ(seen().find(secret) == std::string::npos, encryption == Encryption::on);
    EXPECT_EQ(seen().find("BMTL") == std::string::npos, encryption == Encryption::on);
    one_.reset();
    zero_.reset();
    proxy_.reset();
    seen_.clear();
  }
}

/// Messages that are not bulk: something short, its sender's request, and the reason why a group
/// ends.
FrameHeader asked_for() {
  FrameHeader header = data_header(1);
  header.sealed = true;
  return header;
}
FrameHeader aborting() {
  FrameHeader header;
  header.kind = FrameKind::Abort;
  return header;
}
struct NoBulk {
  FrameHeader header;
  std::size_t more;  ///< bytes
};
class AlteredOnAPlainConnection : public Proxied, public ::testing::WithParamInterface<NoBulk> {};

TEST_P(AlteredOnAPlainConnection, ItIsNoticedBeforeItIsDelivered) {
  const std::string sent = patterned(GetParam().more) + "samples 64 to 127 are yours";
  connect(Encryption::off);
  one_->send(0, GetParam().header, bytes_of(sent), nullptr);
  ASSERT_TRUE(at_zero_.wait_for(1));
  EXPECT_EQ(at_zero_.arrivals()[0].payload, sent);
  proxy_->alter("127 are yours");
  one_->send(0, GetParam().header, bytes_of(sent), nullptr);
  const auto loss = at_zero_.wait_for_loss(1);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->code(), ErrorCode::CorruptData) << loss->what();
  EXPECT_EQ(loss->rank(), 1);
  EXPECT_THAT(loss->what(), HasSubstr("rank 1 ("));
  EXPECT_EQ(at_zero_.arrivals().size(), 1u);
  one_.reset();  // it may still be sending
}

INSTANTIATE_TEST_SUITE_P(Sealed, AlteredOnAPlainConnection,
                         ::testing::Values(NoBulk{data_header(1), 0}, NoBulk{asked_for(), 100'000},
                                           NoBulk{aborting(), 5000}));

class DamagedLength : public Proxied, public ::testing::WithParamInterface<int> {};

TEST_P(DamagedLength, IsNoticed) {
  connect(Encryption::on);
  EXPECT_EQ(send_and_wait(*one_, 0, "all is well"), nullptr);
  ASSERT_TRUE(at_zero_.wait_for(1));
  damage(static_cast<std::uint64_t>(GetParam()));  // the next bytes are a record's length
  // A length that has grown is noticed once that much has come.
  for (int i = 0; i < 100; ++i) send_and_wait(*one_, 0, patterned(3000), i);
  const auto loss = at_zero_.wait_for_loss(1);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->code(), ErrorCode::CorruptData) << loss->what();
}

INSTANTIATE_TEST_SUITE_P(Byte, DamagedLength, ::testing::Values(0, 1));

TEST(Encryption, BothSidesAreToldWhereTheyDisagree) {
  for (const auto of_zero : {Encryption::off, Encryption::on}) {
    const auto of_one = of_zero == Encryption::on ? Encryption::off : Encryption::on;
    TcpMeshBuilder zero(0, 2, options_of(of_zero)), one(1, 2, options_of(of_one));
    const std::vector<std::vector<Endpoint>> endpoints{zero.listening(), one.listening()};
    const auto failure_of = [&](TcpMeshBuilder& builder) {
      return error_of([&] { std::move(builder).connect(endpoints, soon()); })
          .value_or(Error(ErrorCode::Internal, "no error"));
    };
    auto other = std::async(std::launch::async, [&] { return failure_of(one); });
    for (const Error& error : {failure_of(zero), other.get()}) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("BIMETAL_ENCRYPTION"));
      EXPECT_THAT(error.what(), HasSubstr("encrypted"));
      EXPECT_THAT(error.what(), HasSubstr("plain"));
    }
  }
}

// One that knows the token and then breaks off, or garbles, what follows.
TEST(Encryption, GarbageInItsHandshakeIsHungUpOnAndHindersNobody) {
  const TcpMeshOptions options = options_of(Encryption::on);
  TcpMeshBuilder zero(0, 2, options), one(1, 2, options);
  const Endpoint server = zero.listening().front();
  const std::vector<std::vector<Endpoint>> endpoints{{server}, one.listening()};
  auto forming =
      std::async(std::launch::async, [&] { return std::move(zero).connect(endpoints, soon()); });
  const HandshakeKey key(options.token);
  std::list<RawSocket> strangers;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{20}, noise::Handshake::kMessageBytes, std::size_t{4000}}) {
    RawSocket& stranger = strangers.emplace_back(RawSocket::connect(server));
    Hello hello;
    hello.from_rank = 1;
    hello.to_rank = 0;
    hello.job = digest_of_job(options.job_id);
    hello.encrypted = true;
    const auto hello_bytes = encode_hello(hello);
    stranger.write(hello_bytes);
    const auto challenge = stranger.read(kChallengeBytes);
    const auto transcript =
        make_transcript(hello_bytes, std::span(challenge).first<kChallengeBytes>());
    stranger.write(encode_proof(Message::Proof, Service::Mesh, key.client_proof(transcript)));
    EXPECT_EQ(stranger.read(kProofBytes).size(), kProofBytes);
    stranger.write(std::string(size, '\x5a'));
    if (size >= noise::Handshake::kMessageBytes) {
      EXPECT_TRUE(stranger.hangs_up());
    }
  }
  Recorder recorder;
  const auto mesh_of_one = std::move(one).connect(endpoints, soon());
  const auto mesh_of_zero = forming.get();
  mesh_of_zero->start(recorder);
  EXPECT_EQ(send_and_wait(*mesh_of_one, 0, "formed"), nullptr);
  EXPECT_TRUE(recorder.wait_for(1));
}

TEST(Encryption, IsReadFromTheEnvironment) {
  const auto with = [](const char* value) {
    ::setenv("BIMETAL_ENCRYPTION", value, 1);
    return encryption_from_environment();
  };
  EXPECT_EQ(with("on"), Encryption::on);
  EXPECT_EQ(with("off"), Encryption::off);
  EXPECT_EQ(with(""), Encryption::off);
  expect_error(ErrorCode::InvalidArgument, {"'yes'"}, [&] { with("yes"); });
  ::unsetenv("BIMETAL_ENCRYPTION");
  EXPECT_EQ(encryption_from_environment(), Encryption::off);
}

TEST(RecordCipher, BothSidesTakeTheirNewKeysAtTheSameRecord) {
  const noise::CipherState cipher(noise::Key{});
  RecordCipher out(cipher, 3), in(cipher, 3), other(cipher, 1000);
  for (int i = 0; i < 10; ++i) {
    std::vector<std::byte> text(5, std::byte{7});
    std::vector<std::byte> message(text.size() + noise::kTagBytes), without(message);
    out.encrypt(text, message.data());
    other.encrypt(text, without.data());
    EXPECT_EQ(message == without, i < 3) << i;
    const auto plaintext = in.decrypt(message);
    EXPECT_EQ(std::vector(plaintext.begin(), plaintext.end()), text) << i;
  }
}

/// A reader at one end of a connection, at whose other end anything may be written.
class Records : public ::testing::Test {
 protected:
  Records() {
    asio::ip::tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    writer_.connect(acceptor.local_endpoint());
    acceptor.accept(reader_);
  }

  void write(std::span<const std::byte> bytes) {
    asio::write(writer_, asio::buffer(bytes.data(), bytes.size()));
  }

  /// The outcome of reading that many bytes.
  struct Outcome {
    std::vector<std::byte> bytes;
    std::error_code error;
    std::optional<ErrorCode> thrown;
  };
  Outcome read(std::size_t size) {
    Outcome outcome{std::vector<std::byte>(size), {}, {}};
    ByteReader reader(reader_, noise::CipherState(noise::Key{}));
    asio::co_spawn(
        io_,
        [&]() -> asio::awaitable<void> { outcome.error = co_await reader.read(outcome.bytes); },
        [&](std::exception_ptr failure) {
          try {
            if (failure) std::rethrow_exception(failure);
          } catch (const Error& error) {
            outcome.thrown = error.code();
          }
        });
    io_.restart();
    io_.run_for(kPatience);
    return outcome;
  }

  static std::vector<std::byte> record(noise::CipherState& cipher, std::size_t size) {
    std::vector<std::byte> bytes(2 + size + noise::kTagBytes, std::byte{1});
    cipher.encrypt({}, std::span(bytes).subspan(2, size), bytes.data() + 2);
    bytes[0] = static_cast<std::byte>((size + noise::kTagBytes) & 0xff);
    bytes[1] = static_cast<std::byte>((size + noise::kTagBytes) >> 8);
    return bytes;
  }

  asio::io_context io_;
  asio::ip::tcp::socket writer_{io_}, reader_{io_};
  noise::CipherState cipher_{noise::Key{}};
};

TEST_F(Records, ManySmallOnesAndALargestOneAreReadWhole) {
  for (int i = 0; i < 100; ++i) write(record(cipher_, 7));
  write(record(cipher_, noise::kMaxMessageBytes - noise::kTagBytes));
  write(record(cipher_, 0));
  write(record(cipher_, 1));
  constexpr std::size_t kAll = 700 + noise::kMaxMessageBytes - noise::kTagBytes + 1;
  const auto outcome = read(kAll);
  EXPECT_FALSE(outcome.error || outcome.thrown);
  EXPECT_EQ(outcome.bytes, std::vector(kAll, std::byte{1}));
}

TEST_F(Records, TooShortOnesAreRefused) {
  for (const std::size_t length : {0, 1, 15}) {
    std::vector<std::byte> bytes(2 + length);
    bytes[0] = static_cast<std::byte>(length);
    write(bytes);
    EXPECT_EQ(read(1).thrown, ErrorCode::CorruptData) << length;
  }
}

TEST_F(Records, RandomBytesAreRefused) {
  std::vector<std::byte> bytes(70'000, std::byte{0xff});
  write(bytes);
  const auto outcome = read(100);
  EXPECT_EQ(outcome.thrown, ErrorCode::CorruptData);
  EXPECT_EQ(outcome.bytes, std::vector<std::byte>(100));
}

TEST_F(Records, ReplayedOrDroppedOnesAreRefused) {
  const auto first = record(cipher_, 10);
  const auto second = record(cipher_, 10);
  write(first);
  write(first);
  EXPECT_EQ(read(20).thrown, ErrorCode::CorruptData);
  write(second);
  EXPECT_EQ(read(10).thrown, ErrorCode::CorruptData);
}

TEST_F(Records, AnEndWithinOneIsAnEnd) {
  const auto bytes = record(cipher_, 10);
  write(std::span(bytes).first(20));
  writer_.close();
  const auto outcome = read(10);
  EXPECT_EQ(outcome.error, asio::error::eof);
  EXPECT_EQ(outcome.bytes, std::vector<std::byte>(10));
}

TEST(PlainTraffic, IsSpokenOfOnceAndOnlyBeyondLoopback) {
  std::mutex mutex;
  std::vector<std::string> said;
  set_log_sink(
      [&](LogLevel, std::string_view text) {
        std::lock_guard lock(mutex);
        said.emplace_back(text);
      },
      LogLevel::warning);
  note_if_plain("127.0.0.1", Encryption::off);
  note_if_plain("10.0.0.2", Encryption::on);
  EXPECT_TRUE(said.empty());
  for (int i = 0; i < 3; ++i) note_if_plain("10.0.0.2", Encryption::off);
  set_log_sink({});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("not encrypted"));
  EXPECT_THAT(said[0], HasSubstr("BIMETAL_ENCRYPTION=on"));
}

}  // namespace
}  // namespace bimetal::net
