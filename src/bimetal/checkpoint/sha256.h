#pragma once
// SHA-256 as checkpoints use it: to notice damage, not to keep out forgers.

#include <sodium.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace bimetal::checkpoint {

/// Of bytes that come one after the other.
class Sha256 {
 public:
  Sha256() { crypto_hash_sha256_init(&state_); }
  void add(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits. At most once, and nothing after it.
  std::string finish();

 private:
  crypto_hash_sha256_state state_;
};

/// 64 lower-case hexadecimal digits.
std::string sha256_of(std::string_view bytes);

/// Of a file's contents, read in pieces. Error(System) if it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace bimetal::checkpoint
