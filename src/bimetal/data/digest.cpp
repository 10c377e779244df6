#include "bimetal/data/digest.h"

#include <fmt/format.h>

#include "bimetal/net/noise.h"

namespace bimetal::data {

struct Hash::State {
  crypto_generichash_state hash;
};

Hash::Hash() : state_(std::make_unique<State>()) {
  net::ensure_sodium();
  crypto_generichash_init(&state_->hash, nullptr, 0, sizeof(Digest));
}

Hash::~Hash() = default;

void Hash::add(std::span<const std::byte> bytes) {
  crypto_generichash_update(&state_->hash, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

Digest Hash::finish() {
  Digest digest;
  crypto_generichash_final(&state_->hash, reinterpret_cast<unsigned char*>(digest.data()),
                           digest.size());
  return digest;
}

Digest digest_of(std::span<const std::byte> bytes) {
  Hash hash;
  hash.add(bytes);
  return hash.finish();
}

Digest digest_of(const std::string& text) {
  return digest_of(std::as_bytes(std::span(text)));
}

std::string hex(const Digest& digest, std::size_t digits) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text.substr(0, digits);
}

}  // namespace bimetal::data
