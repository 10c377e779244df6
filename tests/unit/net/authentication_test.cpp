// Which clients get into a mesh: wrong tokens, other versions, strangers, attackers. The strangers
// come while the mesh forms, which must form all the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <list>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/handshake.h"
#include "support/errors.h"
#include "unit/net/mesh_harness.h"
#include "unit/net/raw_socket.h"

namespace bimetal::net {
namespace {

using namespace std::chrono_literals;
using namespace net::testing;
using ::testing::HasSubstr;

const Token kToken = Token::from_text("the token of this job");

TcpMeshOptions options_with(const Token& token, const std::string& job = "job") {
  TcpMeshOptions options;
  options.token = token;
  options.job_id = job;
  return options;
}

Hello hello_of_rank_one() {
  Hello hello;
  hello.from_rank = 1;
  hello.to_rank = 0;
  hello.job = digest_of_job("job");
  hello.nonce = fresh_nonce();
  return hello;
}

template <std::size_t size>
std::span<const std::byte, size> exactly(const std::vector<std::byte>& bytes) {
  EXPECT_EQ(bytes.size(), size);
  static const std::array<std::byte, size> nothing{};
  if (bytes.size() != size) return nothing;
  return std::span<const std::byte, size>(bytes.data(), size);
}

std::uint16_t reason_of(const std::vector<std::byte>& reject) {
  const auto bytes = exactly<kRejectBytes>(reject);
  EXPECT_EQ(decode_preamble(bytes.first<kPreambleBytes>()).message, Message::Reject);
  return decode_reject(bytes);
}

std::uint16_t number(Refusal refusal) {
  return static_cast<std::uint16_t>(refusal);
}

/// The exception of rank 1's connect() to `server`.
Error failure_of_rank_one(const Endpoint& server, const TcpMeshOptions& options,
                          Deadline deadline = soon()) {
  TcpMeshBuilder builder(1, 2, options);
  return error_of([&] {
           std::move(builder).connect({{server}, {}}, deadline);
         })
      .value_or(Error(ErrorCode::Internal, "connected"));
}

/// Rank 0 of a world of two, waiting for rank 1 while the test sends it strangers.
class Forming : public ::testing::Test {
 protected:
  Forming() : builder_(0, 2, options_with(kToken)), endpoint_(builder_.listening().front()) {
    forming_ = std::async(std::launch::async, [this] {
      return std::move(builder_).connect({{endpoint_}, {}}, soon());
    });
  }

  /// Rank 1 comes after all, and both exchange a frame.
  void TearDown() override {
    TcpMeshBuilder one(1, 2, options_with(kToken));
    const auto rank_one = std::move(one).connect({{endpoint_}, {}}, soon());
    const auto rank_zero = forming_.get();
    Recorder recorder;
    rank_zero->start(recorder);
    EXPECT_EQ(send_and_wait(*rank_one, 0, "formed"), nullptr);
    EXPECT_TRUE(recorder.wait_for(1));
    rank_zero->close(Deadline::after(0s));
  }

  TcpMeshBuilder builder_;
  Endpoint endpoint_;
  std::future<std::unique_ptr<Mesh>> forming_;
  std::list<RawSocket> strangers_;  ///< still connected while rank 1 comes
};

TEST_F(Forming, WrongTokenIsRefusedAtOnce) {
  for (const Token& wrong : {Token::from_text("another token of that length"), Token()}) {
    const Error error = failure_of_rank_one(endpoint_, options_with(wrong));
    EXPECT_EQ(error.code(), ErrorCode::Unauthorized);
    EXPECT_THAT(error.what(), HasSubstr("token was refused by rank 0"));
    EXPECT_THAT(error.what(), HasSubstr(to_string(endpoint_)));
  }
}

TEST_F(Forming, AnotherJobIsRefusedAtOnce) {
  const Error error = failure_of_rank_one(endpoint_, options_with(kToken, "other job"));
  EXPECT_EQ(error.code(), ErrorCode::Unauthorized);
  EXPECT_THAT(error.what(), HasSubstr("another job"));
}

TEST_F(Forming, RankThatIsNotDueIsRefused) {
  TcpMeshBuilder builder(5, 6, options_with(kToken));
  std::vector<std::vector<Endpoint>> endpoints(6, {endpoint_});
  expect_error(ErrorCode::InvalidArgument, {"refused rank 5"},
               [&] { std::move(builder).connect(endpoints, soon()); });
}

TEST_F(Forming, AnotherVersionIsToldOurs) {
  RawSocket peer = RawSocket::connect(endpoint_);
  auto hello = encode_hello(hello_of_rank_one());
  hello[4] = std::byte{9};
  peer.write(hello);
  peer.write("whatever else version nine has to say in its much longer greeting");
  const auto answer = peer.read(kRejectBytes);
  EXPECT_EQ(reason_of(answer), number(Refusal::Version));
  EXPECT_EQ(decode_preamble(exactly<kRejectBytes>(answer).first<kPreambleBytes>()).version,
            kProtocolVersion);
}

TEST_F(Forming, AnotherServiceIsTold) {
  RawSocket peer = RawSocket::connect(endpoint_);
  Hello hello = hello_of_rank_one();
  hello.service = Service::Store;
  peer.write(encode_hello(hello));
  EXPECT_EQ(reason_of(peer.read(kRejectBytes)), number(Refusal::Service));
}

TEST_F(Forming, StrangersAreHungUpOnWithoutAWord) {
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
                                   std::string(200, '\xff'), std::string(64, '\0')}) {
    RawSocket stranger = RawSocket::connect(endpoint_);
    stranger.write(bytes);
    EXPECT_TRUE(stranger.read(1).empty());
    EXPECT_TRUE(stranger.hangs_up());
  }
}

TEST_F(Forming, StrangersThatStopHalfwayHinderNobody) {
  const auto hello = encode_hello(hello_of_rank_one());
  for (const std::size_t bytes : {0, 1, 7, 8, 71, 72}) {
    for (const bool half_closed : {false, true}) {
      strangers_.push_back(RawSocket::connect(endpoint_));
      strangers_.back().write(std::span(hello).first(bytes));
      if (half_closed) strangers_.back().shut_down_writing();
    }
  }
}

TEST_F(Forming, CrowdOfSilentStrangersHindersNobody) {
  for (int i = 0; i < 300; ++i) strangers_.push_back(RawSocket::connect(endpoint_));
}

TEST_F(Forming, CrowdFromOneAddressDrivesOutNobodyElse) {
  RawSocket slow = RawSocket::connect(endpoint_, "127.0.0.2");
  const auto hello = encode_hello(hello_of_rank_one());
  slow.write(std::span(hello).first(10));
  for (int i = 0; i < 300; ++i) strangers_.push_back(RawSocket::connect(endpoint_));
  EXPECT_TRUE(strangers_.front().hangs_up());
  slow.write(std::span(hello).subspan(10));
  EXPECT_EQ(slow.read(kChallengeBytes).size(), kChallengeBytes);
}

TEST_F(Forming, ManyRefusalsAreFewLinesOfTheLog) {
  std::atomic<int> lines{0};
  set_log_sink([&](LogLevel, std::string_view text) {
    if (text.find("refused") != std::string_view::npos) ++lines;
  });
  for (int i = 0; i < 100; ++i) {
    RawSocket stranger = RawSocket::connect(endpoint_);
    stranger.write("GET / HTTP/1.1\r\nHost: somebody with a lot of time on his hands\r\n\r\n");
    EXPECT_TRUE(stranger.hangs_up());
  }
  set_log_sink({});
  EXPECT_GE(lines, 10);
  EXPECT_LE(lines, 50);
}

// The server's Challenge is all that one without the token ever sees.
TEST_F(Forming, GuessedProofIsRefused) {
  RawSocket attacker = RawSocket::connect(endpoint_);
  attacker.write(encode_hello(hello_of_rank_one()));
  attacker.read(kChallengeBytes);
  attacker.write(encode_proof(Message::Proof, Service::Mesh, Proof{}));
  EXPECT_EQ(reason_of(attacker.read(kRejectBytes)), number(Refusal::Token));
}

/// Says hello with `hello`, proves with the token, and returns what was sent and the last answer.
struct Recording {
  std::vector<std::byte> proof;
  std::vector<std::byte> answer;
};
Recording prove_as(const Endpoint& server, const Hello& hello) {
  RawSocket client = RawSocket::connect(server);
  const auto hello_bytes = encode_hello(hello);
  client.write(hello_bytes);
  const auto challenge = client.read(kChallengeBytes);
  const Transcript transcript = make_transcript(hello_bytes, exactly<kChallengeBytes>(challenge));
  const auto proof =
      encode_proof(Message::Proof, hello.service, HandshakeKey(kToken).client_proof(transcript));
  client.write(proof);
  return {{proof.begin(), proof.end()}, client.read(kProofBytes)};
}

TEST_F(Forming, ReplayedHandshakeIsRefused) {
  // To rank 0 of the same job, by a rank that is not due: proved well, and refused for that alone,
  // so that the real rank 1 still has its place.
  Hello hello = hello_of_rank_one();
  hello.from_rank = 7;
  const Recording recording = prove_as(endpoint_, hello);
  EXPECT_EQ(reason_of(recording.answer), number(Refusal::Rank));

  RawSocket attacker = RawSocket::connect(endpoint_);
  attacker.write(encode_hello(hello));
  attacker.read(kChallengeBytes);
  attacker.write(recording.proof);
  EXPECT_EQ(reason_of(attacker.read(kRejectBytes)), number(Refusal::Token));
}

TEST_F(Forming, ProofOfOneConnectionDoesNotFitAnother) {
  RawSocket first = RawSocket::connect(endpoint_);
  RawSocket second = RawSocket::connect(endpoint_);
  const auto hello = encode_hello(hello_of_rank_one());
  first.write(hello);
  second.write(hello);
  const auto challenge = first.read(kChallengeBytes);
  second.read(kChallengeBytes);
  const Transcript transcript = make_transcript(hello, exactly<kChallengeBytes>(challenge));
  second.write(
      encode_proof(Message::Proof, Service::Mesh, HandshakeKey(kToken).client_proof(transcript)));
  EXPECT_EQ(reason_of(second.read(kRejectBytes)), number(Refusal::Token));
}

/// Accepts one connection and plays a server with it.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(RawSocket&)> play)
      : played_(std::async(std::launch::async, [this, play = std::move(play)] {
          RawSocket client = server_.accept();
          play(client);
        })) {}
  Endpoint endpoint() const { return server_.endpoint(); }

 private:
  RawServer server_;
  std::future<void> played_;
};

TEST(FakeServers, ReflectedProofIsRefused) {
  FakeServer reflecting([](RawSocket& client) {
    client.read(kHelloBytes);
    client.write(encode_challenge(Service::Mesh, fresh_nonce()));
    auto proof = client.read(kProofBytes);
    proof.at(6) = static_cast<std::byte>(Message::Accept);
    client.write(proof);
    client.hangs_up();
  });
  const Error error = failure_of_rank_one(reflecting.endpoint(), options_with(kToken));
  EXPECT_EQ(error.code(), ErrorCode::Unauthorized);
  EXPECT_THAT(error.what(), HasSubstr("could not prove"));
}

TEST(FakeServers, MirrorIsRefused) {
  FakeServer mirror([](RawSocket& client) {
    client.write(client.read(kHelloBytes));
    client.hangs_up();
  });
  EXPECT_EQ(failure_of_rank_one(mirror.endpoint(), options_with(kToken)).code(),
            ErrorCode::ProtocolMismatch);
}

TEST(FakeServers, AnotherVersionIsNamedWithOurs) {
  FakeServer newer([](RawSocket& client) {
    client.read(kHelloBytes);
    auto reject = encode_reject(Service::Mesh, Refusal::Version);
    reject[4] = std::byte{7};
    client.write(reject);
    client.hangs_up();
  });
  const Error error = failure_of_rank_one(newer.endpoint(), options_with(kToken));
  EXPECT_EQ(error.code(), ErrorCode::ProtocolMismatch);
  EXPECT_THAT(error.what(), HasSubstr("protocol version 7"));
  EXPECT_THAT(error.what(), HasSubstr("this side version " + std::to_string(kProtocolVersion)));
}

TEST(FakeServers, SomethingElseIsTold) {
  FakeServer web([](RawSocket& client) {
    client.write("HTTP/1.1 400 Bad Request\r\n\r\n");
    client.hangs_up();
  });
  const Error error = failure_of_rank_one(web.endpoint(), options_with(kToken));
  EXPECT_EQ(error.code(), ErrorCode::ProtocolMismatch);
  EXPECT_THAT(error.what(), HasSubstr("is not Bimetal"));
}

TEST(FakeServers, UnknownReasonIsToldByNumber) {
  FakeServer odd([](RawSocket& client) {
    client.read(kHelloBytes);
    client.write(encode_reject(Service::Mesh, static_cast<Refusal>(999)));
    client.hangs_up();
  });
  EXPECT_THAT(failure_of_rank_one(odd.endpoint(), options_with(kToken)).what(), HasSubstr("999"));
}

TEST(FakeServers, SilentOneEndsAtTheDeadline) {
  FakeServer silent([](RawSocket& client) { client.hangs_up(); });
  const Error error =
      failure_of_rank_one(silent.endpoint(), options_with(kToken), Deadline::after(300ms));
  EXPECT_EQ(error.code(), ErrorCode::Timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 0"));
}

TEST(Authentication, NothingListensBeyondLoopbackWithoutAToken) {
  TcpMeshOptions open;
  open.listen_hosts = {"0.0.0.0"};
  expect_error(ErrorCode::Unauthorized, {}, [&] { TcpMeshBuilder builder(0, 2, open); });
  open.token = kToken;
  EXPECT_NO_THROW(TcpMeshBuilder(0, 2, open));
}

}  // namespace
}  // namespace bimetal::net
