#include "bimetal/net/handshake.h"

#include <gtest/gtest.h>

namespace bimetal::net {
namespace {

const Token kSharedSecret = Token::from_text("a secret that both sides know");

Hello some_hello() {
  Hello hello;
  hello.service = Service::Store;
  hello.from_rank = 3;
  hello.to_rank = 1;
  hello.job = digest_of_job("job");
  hello.nonce = fresh_nonce();
  return hello;
}

Transcript transcript_of(const Hello& hello, const Nonce& server_nonce) {
  return make_transcript(encode_hello(hello), encode_challenge(hello.service, server_nonce));
}

TEST(Handshake, PreambleComesFirstInEveryMessage) {
  const auto check = [](const auto& bytes, Message message) {
    const auto preamble = decode_preamble(std::span(bytes).template first<kPreambleBytes>());
    EXPECT_EQ(preamble.magic, kHandshakeMagic);
    EXPECT_EQ(preamble.version, kProtocolVersion);
    EXPECT_EQ(preamble.message, message);
    EXPECT_EQ(preamble.service, Service::Store);
  };
  check(encode_hello(some_hello()), Message::Hello);
  check(encode_challenge(Service::Store, fresh_nonce()), Message::Challenge);
  check(encode_proof(Message::Accept, Service::Store, Proof{}), Message::Accept);
  check(encode_reject(Service::Store, Refusal::Job), Message::Reject);
}

TEST(Handshake, RejectCarriesItsReason) {
  EXPECT_EQ(decode_reject(encode_reject(Service::Mesh, Refusal::Rank)),
            static_cast<std::uint16_t>(Refusal::Rank));
}

TEST(Handshake, ProofsOfTheTwoRolesDiffer) {
  const Transcript transcript = transcript_of(some_hello(), fresh_nonce());
  const HandshakeKey key(kSharedSecret);
  EXPECT_FALSE(same_proof(key.client_proof(transcript), key.server_proof(transcript)));
}

TEST(Handshake, ProofNeedsTheToken) {
  const Transcript transcript = transcript_of(some_hello(), fresh_nonce());
  const HandshakeKey key(kSharedSecret);
  EXPECT_TRUE(same_proof(key.client_proof(transcript),
                         HandshakeKey(kSharedSecret).client_proof(transcript)));
  for (const Token& other : {Token(), Token::from_text("a secret that both sides know ")}) {
    EXPECT_FALSE(
        same_proof(key.client_proof(transcript), HandshakeKey(other).client_proof(transcript)));
  }
}

TEST(Handshake, ProofIsBoundToEveryByteThatWasSaid) {
  const HandshakeKey key(kSharedSecret);
  const Transcript transcript = transcript_of(some_hello(), fresh_nonce());
  for (std::size_t i = 0; i < transcript.size(); ++i) {
    Transcript other = transcript;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(same_proof(key.client_proof(transcript), key.client_proof(other))) << i;
    EXPECT_FALSE(same_proof(key.server_proof(transcript), key.server_proof(other))) << i;
    EXPECT_NE(key.session_keys(transcript).client_to_server,
              key.session_keys(other).client_to_server);
  }
}

TEST(Handshake, EachDirectionHasItsOwnKeyThatNeedsTheToken) {
  const Transcript transcript = transcript_of(some_hello(), fresh_nonce());
  const SessionKeys keys = HandshakeKey(kSharedSecret).session_keys(transcript);
  EXPECT_NE(keys.client_to_server, keys.server_to_client);
  EXPECT_NE(keys.client_to_server, HandshakeKey(Token()).session_keys(transcript).client_to_server);
}

TEST(Handshake, NoncesAndJobsDiffer) {
  EXPECT_NE(fresh_nonce(), fresh_nonce());
  EXPECT_NE(digest_of_job("a"), digest_of_job("b"));
  EXPECT_EQ(digest_of_job("a"), digest_of_job("a"));
}

}  // namespace
}  // namespace bimetal::net
