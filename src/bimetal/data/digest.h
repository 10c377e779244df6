#pragma once
// A digest of bytes, to compare copies and notice damage.

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace bimetal::data {

/// BLAKE2b of 256 bits (RFC 7693, by libsodium; hashlib.blake2b(digest_size=32) in Python).
using Digest = std::array<std::byte, 32>;

/// The digest of bytes in memory.
Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(const std::string& text);

/// Hexadecimal digits; the whole digest has 64.
std::string hex(const Digest& digest, std::size_t digits = 64);

/// The digest of bytes that come in pieces.
class Hash {
 public:
  Hash();
  ~Hash();
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void add(std::span<const std::byte> bytes);
  /// Once, and nothing after it.
  Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bimetal::data
