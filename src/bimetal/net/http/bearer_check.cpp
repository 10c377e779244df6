#include "bimetal/net/http/bearer_check.h"

#include "bimetal/net/sodium.h"

namespace bimetal::net {

BearerCheck::BearerCheck(const Token& token) : open_(token.empty()), hash_(hash_of(token.text())) {}

bool BearerCheck::admits(std::string_view bearer) const {
  const auto hash = hash_of(bearer);
  return open_ || sodium_memcmp(hash.data(), hash_.data(), hash.size()) == 0;
}

BearerCheck::Hash BearerCheck::hash_of(std::string_view text) {
  ensure_sodium();
  Hash hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
  return hash;
}

}  // namespace bimetal::net
