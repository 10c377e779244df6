#include "bimetal/net/pairing/cpace.h"

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/net/noise.h"

namespace bimetal::net::cpace {
namespace {

using Part = std::span<const std::byte>;
using Parts = std::initializer_list<Part>;

constexpr std::string_view kDomain = "CPaceRistretto255";
constexpr std::string_view kKeyDomain = "CPaceRistretto255_ISK";
constexpr std::string_view kMacDomain = "CPaceMac";
constexpr std::size_t kHashBlockBytes = 128;  // of SHA-512
static_assert(kShareBytes == crypto_core_ristretto255_BYTES);
static_assert(kShareBytes == crypto_core_ristretto255_SCALARBYTES);
static_assert(sizeof(SessionKey) == crypto_hash_sha512_BYTES);
static_assert(sizeof(SessionKey) == crypto_core_ristretto255_HASHBYTES);
static_assert(sizeof(Tag) == crypto_auth_hmacsha512_BYTES);

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

Part bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// SHA-512 of the parts, one after the other.
SessionKey hash_of(Parts parts) {
  crypto_hash_sha512_state state;
  crypto_hash_sha512_init(&state);
  for (const auto part : parts) crypto_hash_sha512_update(&state, raw(part.data()), part.size());
  SessionKey out;
  crypto_hash_sha512_final(&state, raw(out.data()));
  sodium_memzero(&state, sizeof(state));
  return out;
}

void append_length(std::vector<std::byte>& out, std::size_t length) {
  for (; length >= 0x80; length >>= 7)
    out.push_back(static_cast<std::byte>((length & 0x7f) | 0x80));
  out.push_back(static_cast<std::byte>(length));
}

std::size_t length_with_prefix(std::string_view text) {
  std::vector<std::byte> length;
  append_length(length, text.size());
  return length.size() + text.size();
}

void wipe(std::vector<std::byte>& secret) {
  sodium_memzero(secret.data(), secret.size());
}

}  // namespace

std::vector<std::byte> lv_cat(Parts parts) {
  std::vector<std::byte> out;
  for (const auto part : parts) {
    append_length(out, part.size());
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

/// The draft's generator_string: domain and password fill the hash's first block.
Share generator(const Inputs& inputs) {
  ensure_sodium();
  const std::size_t filled = 1 + length_with_prefix(inputs.password) + length_with_prefix(kDomain);
  const std::vector<std::byte> zeros(kHashBlockBytes - std::min(filled, kHashBlockBytes));
  auto text =
      lv_cat({bytes_of(kDomain), bytes_of(inputs.password), zeros, inputs.channel, inputs.session});
  auto hash = hash_of({text});
  Share point;
  crypto_core_ristretto255_from_hash(raw(point.data()), raw(hash.data()));
  wipe(text);
  sodium_memzero(hash.data(), hash.size());
  return point;
}

Exchange::Exchange(Role role, const Inputs& inputs, Part associated,
                   const std::optional<Scalar>& secret)
    : role_(role),
      session_(inputs.session.begin(), inputs.session.end()),
      own_associated_(associated.begin(), associated.end()) {
  ensure_sodium();
  if (secret) {
    secret_ = *secret;
  } else {
    crypto_core_ristretto255_scalar_random(raw(secret_.data()));
  }
  auto base = generator(inputs);
  if (crypto_scalarmult_ristretto255(raw(own_share_.data()), raw(secret_.data()),
                                     raw(base.data())) != 0) {
    throw Error(ErrorCode::Internal, "a secret of the code's exchange is zero");
  }
  sodium_memzero(base.data(), base.size());
}

Exchange::~Exchange() {
  sodium_memzero(secret_.data(), secret_.size());
  sodium_memzero(key_.data(), key_.size());
}

void Exchange::receive(const Share& share, Part associated) {
  their_share_ = share;
  their_associated_.assign(associated.begin(), associated.end());
  Share point;
  // Refuses what decodes to no point, and the neutral element.
  if (crypto_scalarmult_ristretto255(raw(point.data()), raw(secret_.data()), raw(share.data())) !=
      0) {
    throw Error(ErrorCode::Unauthorized,
                "the other side's share of the exchange is no usable point of the group");
  }
  const bool first = role_ == Role::initiator;
  auto text = lv_cat({bytes_of(kKeyDomain), session_, point});
  const auto transcript = first ? lv_cat({own_share_, own_associated_, share, their_associated_})
                                : lv_cat({share, their_associated_, own_share_, own_associated_});
  key_ = hash_of({text, transcript});
  wipe(text);
  sodium_memzero(point.data(), point.size());
}

Tag Exchange::tag() const {
  return tag_of(own_share_, own_associated_);
}

bool Exchange::confirms(const Tag& theirs) const {
  const auto expected = tag_of(their_share_, their_associated_);
  return sodium_memcmp(expected.data(), theirs.data(), theirs.size()) == 0;
}

Tag Exchange::tag_of(const Share& share, Part associated) const {
  auto key = hash_of({bytes_of(kMacDomain), session_, key_});
  const auto text = lv_cat({share, associated});
  crypto_auth_hmacsha512_state state;
  crypto_auth_hmacsha512_init(&state, raw(key.data()), key.size());
  crypto_auth_hmacsha512_update(&state, raw(text.data()), text.size());
  Tag tag;
  crypto_auth_hmacsha512_final(&state, raw(tag.data()));
  sodium_memzero(&state, sizeof(state));
  sodium_memzero(key.data(), key.size());
  return tag;
}

}  // namespace bimetal::net::cpace
