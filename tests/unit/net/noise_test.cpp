#include "bimetal/net/noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::net::noise {
namespace {

using Bytes = std::vector<std::byte>;

Bytes from_hex(std::string_view text) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

Key key_from_hex(std::string_view text) {
  const Bytes bytes = from_hex(text);
  Key key;
  std::copy_n(bytes.begin(), key.size(), key.begin());
  return key;
}

Bytes encrypted(CipherState& cipher, const Bytes& plaintext) {
  Bytes out(plaintext.size() + kTagBytes);
  cipher.encrypt({}, plaintext, out.data());
  return out;
}

Bytes decrypted(CipherState& cipher, Bytes message) {
  const auto plain = cipher.decrypt({}, message);
  return {plain.begin(), plain.end()};
}

const Key kSecret =
    key_from_hex("54686973206973206d7920417573747269616e20706572737065637469766521");

// The vector that the Noise implementation Cacophony publishes for
// Noise_NNpsk0_25519_ChaChaPoly_BLAKE2b (vectors/cacophony.txt), which other implementations check
// themselves against, too.
TEST(Noise, AgreesWithThePublishedVector) {
  const Bytes prologue = from_hex("4a6f686e2047616c74");
  using Role = Handshake::Role;
  Handshake initiator(
      Role::initiator, kSecret, prologue,
      key_from_hex("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"));
  Handshake responder(
      Role::responder, kSecret, prologue,
      key_from_hex("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"));

  const Bytes first_payload = from_hex("4c756477696720766f6e204d69736573");
  const Bytes first = initiator.write(first_payload);
  EXPECT_EQ(first, from_hex("ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944"
                            "ed63df2f5a12aee1185ee9c50305f2ecf12421dcb53c047a63b784cf7c54a105"));
  EXPECT_EQ(responder.read(first), first_payload);
  const Bytes second_payload = from_hex("4d757272617920526f746862617264");
  const Bytes second = responder.write(second_payload);
  EXPECT_EQ(second, from_hex("95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843"
                             "0e0fe7d5c0c9b92f7478716c8852f1b4f389edb75e3ebe546fafafd5b6f0f7"));
  EXPECT_EQ(initiator.read(second), second_payload);
  const Bytes hash = from_hex(
      "ed5e9692d0ab507b6c2beec3f584fd5b127817a9d20b26cd50aa72c507260fa3"
      "1aa7d88dd3723316338af37ce0b4cfb2923aeb848bbf2b934911306f01ffc963");
  EXPECT_EQ(Bytes(initiator.hash().begin(), initiator.hash().end()), hash);
  EXPECT_EQ(initiator.hash(), responder.hash());

  auto sender = initiator.split();
  auto receiver = responder.split();
  const struct {
    bool to_responder;
    const char* payload;
    const char* ciphertext;
  } messages[] = {
      {true, "462e20412e20486179656b", "0fe04b26dcfbb69f8a6a94c61f1a26ef88769218d32f5d17c068a6"},
      {false, "4361726c204d656e676572", "2239e0c540c01f09eb1f4cc5258fd5acfefff18a5a3773f21b7bfe"},
      {true, "4a65616e2d426170746973746520536179",
       "f216cb03d30fb8af1e561fe02a07552d09b416e27a75e62c77d193718b0bdaae9f"},
      {false, "457567656e2042f6686d20766f6e2042617765726b",
       "6e8baf98b944184dd7dc5ef14d8108cbeca626de118a5460f3308e294d61e17238bce29bd9"},
  };
  for (const auto& message : messages) {
    CipherState& out = message.to_responder ? sender.to_responder : receiver.to_initiator;
    CipherState& in = message.to_responder ? receiver.to_responder : sender.to_initiator;
    const Bytes sealed = encrypted(out, from_hex(message.payload));
    EXPECT_EQ(sealed, from_hex(message.ciphertext));
    EXPECT_EQ(decrypted(in, sealed), from_hex(message.payload));
  }
}

TEST(Noise, EveryHandshakeHasKeysOfItsOwn) {
  const auto sealed_zero = [] {
    Handshake initiator(Handshake::Role::initiator, kSecret, {});
    Handshake responder(Handshake::Role::responder, kSecret, {});
    responder.read(initiator.write());
    initiator.read(responder.write());
    auto ciphers = initiator.split();
    EXPECT_NE(encrypted(ciphers.to_initiator, Bytes(4)), encrypted(ciphers.to_responder, Bytes(4)));
    return encrypted(ciphers.to_responder, Bytes(4));
  };
  EXPECT_NE(sealed_zero(), sealed_zero());
}

TEST(Noise, AnotherSecretOrPrologueIsNoticedAtTheFirstMessage) {
  Key other = kSecret;
  other[31] ^= std::byte{1};
  const Bytes prologue = from_hex("01");
  for (const bool same_secret : {false, true}) {
    Handshake initiator(Handshake::Role::initiator, same_secret ? kSecret : other, {});
    Handshake responder(
        Handshake::Role::responder, kSecret,
        same_secret ? std::span<const std::byte>(prologue) : std::span<const std::byte>());
    const Bytes first = initiator.write();
    EXPECT_EQ(code_of([&] { responder.read(first); }), ErrorCode::Unauthorized);
  }
}

TEST(Noise, EveryDamagedByteOfTheHandshakeIsNoticed) {
  for (std::size_t at = 0; at < Handshake::kMessageBytes; ++at) {
    Handshake initiator(Handshake::Role::initiator, kSecret, {});
    Handshake responder(Handshake::Role::responder, kSecret, {});
    Bytes first = initiator.write();
    responder.read(first);
    Bytes second = responder.write();
    second[at] ^= std::byte{0x40};
    EXPECT_EQ(code_of([&] { initiator.read(second); }), ErrorCode::Unauthorized) << at;
    first[at] ^= std::byte{0x40};
    Handshake other(Handshake::Role::responder, kSecret, {});
    EXPECT_EQ(code_of([&] { other.read(first); }), ErrorCode::Unauthorized) << at;
  }
}

TEST(Noise, ShortMessagesAndKeysThatAreNoneAreRefused) {
  for (const std::size_t size : {0, 1, 31, 32, 47}) {
    Handshake responder(Handshake::Role::responder, kSecret, {});
    EXPECT_EQ(code_of([&] { responder.read(Bytes(size)); }), ErrorCode::Unauthorized);
  }
  // With the point 0 the shared secret would be 0 whatever our own key is.
  Handshake initiator(Handshake::Role::initiator, kSecret, {});
  initiator.write();
  EXPECT_EQ(code_of([&] { initiator.read(Bytes(Handshake::kMessageBytes)); }),
            ErrorCode::Unauthorized);
}

TEST(CipherState, NoticesReplayReorderingAndTruncation) {
  CipherState out(kSecret);
  const Bytes first = encrypted(out, from_hex("0102"));
  const Bytes second = encrypted(out, from_hex("0304"));
  const auto read_in_order = [](std::initializer_list<Bytes> messages) {
    CipherState in(kSecret);
    for (const Bytes& message : messages) decrypted(in, message);
  };
  EXPECT_NO_THROW(read_in_order({first, second}));
  EXPECT_EQ(code_of([&] { read_in_order({first, first}); }), ErrorCode::CorruptData);
  EXPECT_EQ(code_of([&] { read_in_order({second}); }), ErrorCode::CorruptData);
  EXPECT_EQ(code_of([&] { read_in_order({Bytes(first.begin(), first.end() - 1)}); }),
            ErrorCode::CorruptData);
  EXPECT_EQ(code_of([&] { read_in_order({Bytes(kTagBytes - 1)}); }), ErrorCode::CorruptData);
  EXPECT_EQ(code_of([&] { read_in_order({Bytes()}); }), ErrorCode::CorruptData);
}

TEST(CipherState, GoesOnUnderANewKey) {
  CipherState out(kSecret), in(kSecret), unaware(kSecret);
  const Bytes first = encrypted(out, Bytes(3));
  decrypted(in, first);
  decrypted(unaware, first);
  out.rekey();
  in.rekey();
  const Bytes second = encrypted(out, from_hex("aa"));
  EXPECT_EQ(decrypted(in, second), from_hex("aa"));
  EXPECT_EQ(code_of([&] { decrypted(unaware, second); }), ErrorCode::CorruptData);
}

TEST(CipherState, StopsBeforeItsNumbersRunOut) {
  constexpr auto kLast = std::numeric_limits<std::uint64_t>::max() - 1;
  CipherState out(kSecret, kLast), in(kSecret, kLast);
  EXPECT_EQ(decrypted(in, encrypted(out, Bytes(2))), Bytes(2));
  EXPECT_EQ(code_of([&] { encrypted(out, Bytes(2)); }), ErrorCode::Internal);
  EXPECT_EQ(code_of([&] { decrypted(in, Bytes(2 + kTagBytes)); }), ErrorCode::CorruptData);
}

}  // namespace
}  // namespace bimetal::net::noise
