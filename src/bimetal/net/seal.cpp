#include "bimetal/net/seal.h"

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/net/sodium.h"

namespace bimetal::net {
namespace {

static_assert(sizeof(SessionKey) == 2 * crypto_shorthash_KEYBYTES);

std::uint64_t siphash(std::span<const std::byte> bytes, const std::byte* key) {
  std::array<unsigned char, crypto_shorthash_BYTES> sum;
  crypto_shorthash(sum.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                   reinterpret_cast<const unsigned char*>(key));
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) number |= std::uint64_t{sum[i]} << (8 * i);
  return number;
}

}  // namespace

std::uint64_t Seal::sum_next_head(std::span<const std::byte> head) {
  std::array<std::byte, kMaxHeadBytes + sizeof(messages_)> covered;
  if (head.size() > kMaxHeadBytes) throw Error(ErrorCode::Internal, "too long a head to be summed");
  auto end = std::copy(head.begin(), head.end(), covered.begin());
  for (std::size_t i = 0; i < sizeof(messages_); ++i) {
    *end++ = static_cast<std::byte>(messages_ >> (8 * i));
  }
  ++messages_;
  return siphash(std::span(covered).first(head.size() + sizeof(messages_)), key_.data());
}

std::uint64_t Seal::sum_body(std::span<const std::byte> body) const {
  return siphash(body, key_.data() + crypto_shorthash_KEYBYTES);
}

}  // namespace bimetal::net
