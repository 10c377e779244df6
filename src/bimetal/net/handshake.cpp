#include "bimetal/net/handshake.h"

#include <algorithm>

#include "bimetal/base/wire.h"
#include "bimetal/net/noise.h"

namespace bimetal::net {
namespace {

constexpr std::string_view kKeyLabel = "bimetal token";
constexpr std::string_view kJobLabel = "bimetal job";
constexpr std::string_view kClientLabel = "bimetal client proof";
constexpr std::string_view kServerLabel = "bimetal server proof";
constexpr std::string_view kToServerLabel = "bimetal frames to server";
constexpr std::string_view kToClientLabel = "bimetal frames to client";
constexpr std::string_view kEncryptionLabel = "bimetal encryption";

constexpr std::uint32_t kEncryptedFlag = 1;

const unsigned char* input(const void* bytes) {
  return static_cast<const unsigned char*>(bytes);
}
unsigned char* output(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

template <std::size_t size>
std::array<std::byte, size> fixed(const WireWriter& writer) {
  std::array<std::byte, size> out{};
  std::copy(writer.bytes().begin(), writer.bytes().end(), out.begin());
  return out;
}

WireWriter with_preamble(Message message, Service service) {
  WireWriter out;
  out.u32(kHandshakeMagic);
  out.u16(kProtocolVersion);
  out.u8(static_cast<std::uint8_t>(message));
  out.u8(static_cast<std::uint8_t>(service));
  return out;
}

template <std::size_t size>
std::array<std::byte, size> take(WireReader& in) {
  const auto field = in.raw(size);
  std::array<std::byte, size> out;
  std::copy(field.begin(), field.end(), out.begin());
  return out;
}

/// BLAKE2b of a label and some bytes; the label's terminating zero keeps the two apart.
template <std::size_t size>
std::array<std::byte, size> hash(std::string_view label, const void* data, std::size_t length,
                                 const unsigned char* key, std::size_t key_length) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, key, key_length, size);
  crypto_generichash_update(&state, input(label.data()), label.size());
  crypto_generichash_update(&state, input("\0"), 1);
  crypto_generichash_update(&state, input(data), length);
  std::array<std::byte, size> out;
  crypto_generichash_final(&state, output(out.data()), out.size());
  sodium_memzero(&state, sizeof(state));
  return out;
}

}  // namespace

JobDigest digest_of_job(std::string_view job_id) {
  return hash<sizeof(JobDigest)>(kJobLabel, job_id.data(), job_id.size(), nullptr, 0);
}

Nonce fresh_nonce() {
  ensure_sodium();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Preamble decode_preamble(std::span<const std::byte, kPreambleBytes> bytes) {
  WireReader in(bytes);
  Preamble preamble;
  preamble.magic = in.u32();
  preamble.version = in.u16();
  preamble.message = static_cast<Message>(in.u8());
  preamble.service = static_cast<Service>(in.u8());
  return preamble;
}

std::array<std::byte, kHelloBytes> encode_hello(const Hello& hello) {
  WireWriter out = with_preamble(Message::Hello, hello.service);
  out.i32(hello.from_rank);
  out.i32(hello.to_rank);
  out.raw(hello.job);
  out.raw(hello.nonce);
  out.u32(hello.encrypted ? kEncryptedFlag : 0);
  out.u32(0);
  return fixed<kHelloBytes>(out);
}

Hello decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
  WireReader in(bytes.subspan<kPreambleBytes>());
  Hello hello;
  hello.service = decode_preamble(bytes.first<kPreambleBytes>()).service;
  hello.from_rank = in.i32();
  hello.to_rank = in.i32();
  hello.job = take<sizeof(JobDigest)>(in);
  hello.nonce = take<sizeof(Nonce)>(in);
  hello.encrypted = (in.u32() & kEncryptedFlag) != 0;
  return hello;
}

std::array<std::byte, kChallengeBytes> encode_challenge(Service service, const Nonce& nonce) {
  WireWriter out = with_preamble(Message::Challenge, service);
  out.raw(nonce);
  return fixed<kChallengeBytes>(out);
}

std::array<std::byte, kProofBytes> encode_proof(Message message, Service service,
                                                const Proof& proof) {
  WireWriter out = with_preamble(message, service);
  out.raw(proof);
  return fixed<kProofBytes>(out);
}

Proof decode_proof(std::span<const std::byte, kProofBytes> bytes) {
  WireReader in(bytes.subspan<kPreambleBytes>());
  return take<sizeof(Proof)>(in);
}

std::array<std::byte, kRejectBytes> encode_reject(Service service, Refusal refusal) {
  WireWriter out = with_preamble(Message::Reject, service);
  out.u16(static_cast<std::uint16_t>(refusal));
  return fixed<kRejectBytes>(out);
}

std::uint16_t decode_reject(std::span<const std::byte, kRejectBytes> bytes) {
  return WireReader(bytes.subspan<kPreambleBytes>()).u16();
}

Transcript make_transcript(std::span<const std::byte, kHelloBytes> hello,
                           std::span<const std::byte, kChallengeBytes> challenge) {
  Transcript transcript;
  const auto next = std::copy(hello.begin(), hello.end(), transcript.begin());
  std::copy(challenge.begin(), challenge.end(), next);
  return transcript;
}

HandshakeKey::HandshakeKey(const Token& token) {
  ensure_sodium();
  auto key = hash<32>(kKeyLabel, token.text().data(), token.text().size(), nullptr, 0);
  std::copy_n(input(key.data()), key.size(), key_.begin());
  sodium_memzero(key.data(), key.size());
}

HandshakeKey::~HandshakeKey() {
  sodium_memzero(key_.data(), key_.size());
}

Proof HandshakeKey::prove(std::string_view role, const Transcript& transcript) const {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key_.data(), key_.size());
  crypto_auth_hmacsha256_update(&state, input(role.data()), role.size());
  crypto_auth_hmacsha256_update(&state, input("\0"), 1);
  crypto_auth_hmacsha256_update(&state, input(transcript.data()), transcript.size());
  Proof proof;
  static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_final(&state, output(proof.data()));
  sodium_memzero(&state, sizeof(state));
  return proof;
}

SessionKey HandshakeKey::derive(std::string_view direction, const Transcript& transcript) const {
  return hash<sizeof(SessionKey)>(direction, transcript.data(), transcript.size(), key_.data(),
                                  key_.size());
}

Proof HandshakeKey::client_proof(const Transcript& transcript) const {
  return prove(kClientLabel, transcript);
}

Proof HandshakeKey::server_proof(const Transcript& transcript) const {
  return prove(kServerLabel, transcript);
}

SessionKeys HandshakeKey::session_keys(const Transcript& transcript) const {
  return {derive(kToServerLabel, transcript), derive(kToClientLabel, transcript), {}};
}

noise::Key HandshakeKey::encryption_secret() const {
  return hash<noise::kKeyBytes>(kEncryptionLabel, nullptr, 0, key_.data(), key_.size());
}

bool same_proof(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace bimetal::net
