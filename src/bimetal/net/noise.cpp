#include "bimetal/net/noise.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "bimetal/base/error.h"

namespace bimetal::net::noise {
namespace {

constexpr std::string_view kProtocolName = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2b";
static_assert(kProtocolName.size() <= kHashBytes);  // or it would have to be hashed
static_assert(kKeyBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(kTagBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
static_assert(kKeyBytes == crypto_scalarmult_curve25519_BYTES);
static_assert(kHashBytes == crypto_generichash_BYTES_MAX);

constexpr std::size_t kHashBlockBytes = 128;  // of BLAKE2b
constexpr std::uint64_t kMaxNonce = std::numeric_limits<std::uint64_t>::max();

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

/// BLAKE2b of the parts, one after the other.
Hash hash_of(std::initializer_list<std::span<const std::byte>> parts) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, kHashBytes);
  for (const auto part : parts) crypto_generichash_update(&state, raw(part.data()), part.size());
  Hash out;
  crypto_generichash_final(&state, raw(out.data()), out.size());
  sodium_memzero(&state, sizeof(state));
  return out;
}

/// HMAC (RFC 2104) with BLAKE2b as its hash, which the specification asks for: BLAKE2b's own keyed
/// mode is something else.
Hash hmac(const Hash& key, std::initializer_list<std::span<const std::byte>> parts) {
  std::array<std::byte, kHashBlockBytes> inner, outer;
  inner.fill(std::byte{0x36});
  outer.fill(std::byte{0x5c});
  for (std::size_t i = 0; i < key.size(); ++i) {
    inner[i] ^= key[i];
    outer[i] ^= key[i];
  }
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, kHashBytes);
  crypto_generichash_update(&state, raw(inner.data()), inner.size());
  for (const auto part : parts) crypto_generichash_update(&state, raw(part.data()), part.size());
  Hash digest;
  crypto_generichash_final(&state, raw(digest.data()), digest.size());
  const Hash out = hash_of({outer, digest});
  sodium_memzero(inner.data(), inner.size());
  sodium_memzero(outer.data(), outer.size());
  sodium_memzero(digest.data(), digest.size());
  sodium_memzero(&state, sizeof(state));
  return out;
}

/// Section 4.3, with all three outputs, of which callers may need two.
std::array<Hash, 3> hkdf(const Hash& chaining_key, std::span<const std::byte> input) {
  constexpr std::array kCounters = {std::byte{1}, std::byte{2}, std::byte{3}};
  const std::span counters(kCounters);
  const Hash temporary = hmac(chaining_key, {input});
  std::array<Hash, 3> out;
  out[0] = hmac(temporary, {counters.subspan(0, 1)});
  out[1] = hmac(temporary, {out[0], counters.subspan(1, 1)});
  out[2] = hmac(temporary, {out[1], counters.subspan(2, 1)});
  return out;
}

/// The first bytes of a hash, as keys are taken from it.
Key key_of(const Hash& hash) {
  Key key;
  std::copy_n(hash.begin(), key.size(), key.begin());
  return key;
}

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

/// Section 12.3: 32 zero bits and the number, little-endian.
Nonce nonce_of(std::uint64_t number) {
  Nonce nonce{};
  for (std::size_t i = 0; i < sizeof(number); ++i) {
    nonce[4 + i] = static_cast<unsigned char>(number >> (8 * i));
  }
  return nonce;
}

void seal(const Key& key, std::uint64_t number, std::span<const std::byte> associated,
          std::span<const std::byte> plaintext, std::byte* out) {
  crypto_aead_chacha20poly1305_ietf_encrypt(
      raw(out), nullptr, raw(plaintext.data()), plaintext.size(), raw(associated.data()),
      associated.size(), nullptr, nonce_of(number).data(), raw(key.data()));
}

}  // namespace

CipherState::~CipherState() {
  sodium_memzero(key_.data(), key_.size());
}

void CipherState::encrypt(std::span<const std::byte> associated,
                          std::span<const std::byte> plaintext, std::byte* out) {
  if (nonce_ == kMaxNonce) {
    throw Error(ErrorCode::Internal, "an encrypted connection has used up its message numbers");
  }
  seal(key_, nonce_, associated, plaintext, out);
  ++nonce_;
}

std::span<std::byte> CipherState::decrypt(std::span<const std::byte> associated,
                                          std::span<std::byte> message) {
  if (message.size() < kTagBytes || nonce_ == kMaxNonce ||
      crypto_aead_chacha20poly1305_ietf_decrypt(raw(message.data()), nullptr, nullptr,
                                                raw(message.data()), message.size(),
                                                raw(associated.data()), associated.size(),
                                                nonce_of(nonce_).data(), raw(key_.data())) != 0) {
    throw Error(ErrorCode::CorruptData,
                "encrypted bytes have been damaged, altered or put out of order on their way");
  }
  ++nonce_;
  return message.first(message.size() - kTagBytes);
}

void CipherState::rekey() {
  const Key zeros{};
  std::array<std::byte, kKeyBytes + kTagBytes> sealed;
  seal(key_, kMaxNonce, {}, zeros, sealed.data());
  std::copy_n(sealed.begin(), key_.size(), key_.begin());
  sodium_memzero(sealed.data(), sealed.size());
}

Handshake::Handshake(Role role, const Key& secret, std::span<const std::byte> prologue,
                     const std::optional<Key>& ephemeral)
    : role_(role), hash_{} {
  ensure_sodium();
  std::ranges::copy(std::as_bytes(std::span(kProtocolName)), hash_.begin());
  chaining_key_ = hash_;
  mix_hash(prologue);
  if (ephemeral) {
    own_secret_ = *ephemeral;
  } else {
    randombytes_buf(own_secret_.data(), own_secret_.size());
  }
  crypto_scalarmult_curve25519_base(raw(own_public_.data()), raw(own_secret_.data()));
  mix_key_and_hash(secret);  // psk0: before anything else
}

Handshake::~Handshake() {
  sodium_memzero(own_secret_.data(), own_secret_.size());
  sodium_memzero(chaining_key_.data(), chaining_key_.size());
}

std::vector<std::byte> Handshake::write(std::span<const std::byte> payload) {
  std::vector<std::byte> message(kKeyBytes + payload.size() + kTagBytes);
  std::ranges::copy(own_public_, message.begin());
  mix_hash(own_public_);
  mix_key(own_public_);  // as section 9.2 has it where there is a psk
  if (role_ == Role::responder) mix_shared_secret();
  const std::span sealed(message.data() + kKeyBytes, payload.size() + kTagBytes);
  cipher_->encrypt(hash_, payload, sealed.data());
  mix_hash(sealed);
  return message;
}

std::vector<std::byte> Handshake::read(std::span<const std::byte> message) {
  const Error refused(ErrorCode::Unauthorized,
                      "the encryption handshake failed: the other side does not know the job's "
                      "token, or somebody changes bytes on the way");
  if (message.size() < kMessageBytes) throw refused;
  std::copy_n(message.begin(), kKeyBytes, their_public_.begin());
  mix_hash(their_public_);
  mix_key(their_public_);
  if (role_ == Role::initiator) mix_shared_secret();
  const auto sealed = message.subspan(kKeyBytes);
  std::vector<std::byte> payload(sealed.begin(), sealed.end());
  try {
    cipher_->decrypt(hash_, payload);
  } catch (const Error&) {
    throw refused;
  }
  mix_hash(sealed);
  payload.resize(payload.size() - kTagBytes);
  return payload;
}

Handshake::Ciphers Handshake::split() const {
  const auto keys = hkdf(chaining_key_, {});
  return {CipherState(key_of(keys[0])), CipherState(key_of(keys[1]))};
}

void Handshake::mix_hash(std::span<const std::byte> data) {
  hash_ = hash_of({hash_, data});
}

void Handshake::mix_key(std::span<const std::byte> input) {
  const auto keys = hkdf(chaining_key_, input);
  chaining_key_ = keys[0];
  cipher_.emplace(key_of(keys[1]));
}

void Handshake::mix_key_and_hash(std::span<const std::byte> input) {
  const auto keys = hkdf(chaining_key_, input);
  chaining_key_ = keys[0];
  mix_hash(keys[1]);
  cipher_.emplace(key_of(keys[2]));
}

void Handshake::mix_shared_secret() {
  Key shared;
  // Refuses the few points with which every secret gives the same.
  if (crypto_scalarmult_curve25519(raw(shared.data()), raw(own_secret_.data()),
                                   raw(their_public_.data())) != 0) {
    throw Error(ErrorCode::Unauthorized, "the other side's key for encryption is no usable key");
  }
  mix_key(shared);
  sodium_memzero(shared.data(), shared.size());
}

}  // namespace bimetal::net::noise
