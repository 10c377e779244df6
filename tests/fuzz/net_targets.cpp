// Targets of net: frames, the handshake, the encryption handshake.

#include <sodium.h>

#include <algorithm>
#include <array>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/net/frame.h"
#include "bimetal/net/handshake.h"
#include "bimetal/net/noise.h"
#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

/// The first `size` bytes, zeros where there are fewer.
template <std::size_t size>
std::array<std::byte, size> head(Bytes bytes) {
  std::array<std::byte, size> out{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), size), out.begin());
  return out;
}

void decode(const net::EncodedHeader& bytes) {
  const net::SessionKey key{};
  try {
    const net::FrameHeader header = net::decode_header(bytes, key);
    promise(net::decode_header(net::encode_header(header, key), key) == header);
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::ProtocolMismatch || error.code() == ErrorCode::CorruptData);
  }
}

net::noise::Key some_key(std::byte fill) {
  net::noise::Key key;
  key.fill(fill);
  return key;
}

}  // namespace

void frame(Bytes bytes) {
  auto header = head<net::kFrameHeaderBytes>(bytes);
  decode(header);
  // A stranger never gets further; a member of the job does.
  const net::EncodedHeader good = net::encode_header({}, net::SessionKey{});
  std::copy_n(good.begin(), 6, header.begin());
  const std::array<unsigned char, 16> key{};
  auto covered = header;  // with the frame's number, 0, in place of its checksum
  std::fill(covered.begin() + 56, covered.end(), std::byte{0});
  crypto_shorthash(reinterpret_cast<unsigned char*>(header.data() + 56),
                   reinterpret_cast<const unsigned char*>(covered.data()), covered.size(),
                   key.data());
  decode(header);
}

void handshake(Bytes bytes) {
  const auto hello_bytes = head<net::kHelloBytes>(bytes);
  const net::Hello hello = net::decode_hello(hello_bytes);
  const net::Hello again = net::decode_hello(net::encode_hello(hello));
  promise(again.from_rank == hello.from_rank && again.to_rank == hello.to_rank &&
          again.job == hello.job && again.nonce == hello.nonce &&
          again.encrypted == hello.encrypted);
  net::decode_preamble(head<net::kPreambleBytes>(bytes));
  net::decode_reject(head<net::kRejectBytes>(bytes));
  const auto rest = bytes.subspan(std::min(bytes.size(), hello_bytes.size()));
  const auto challenge = head<net::kChallengeBytes>(rest);
  const auto proof = net::decode_proof(
      head<net::kProofBytes>(rest.subspan(std::min(rest.size(), challenge.size()))));
  // Nobody proves a token by chance.
  static const net::HandshakeKey key(net::Token::from_text("a token that the fuzzer has not"));
  const auto transcript = net::make_transcript(hello_bytes, challenge);
  promise(!net::same_proof(proof, key.client_proof(transcript)));
  promise(!net::same_proof(proof, key.server_proof(transcript)));
}

void noise(Bytes bytes) {
  using net::noise::Handshake;
  const net::noise::Key secret = some_key(std::byte{7});
  const auto refused = [&](Handshake& side) {
    try {
      side.read(bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::Unauthorized;
    }
    return false;
  };
  Handshake responder(Handshake::Role::responder, secret, {}, some_key(std::byte{1}));
  promise(refused(responder));
  Handshake initiator(Handshake::Role::initiator, secret, {}, some_key(std::byte{2}));
  initiator.write();
  promise(refused(initiator));

  std::vector<std::byte> record(bytes.begin(), bytes.end());
  net::noise::CipherState cipher(secret);
  try {
    cipher.decrypt({}, record);
    promise(false);
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::CorruptData);
  }
}

}  // namespace bimetal::fuzz
