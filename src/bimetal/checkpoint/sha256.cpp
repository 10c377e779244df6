#include "bimetal/checkpoint/sha256.h"

#include <array>
#include <vector>

#include "bimetal/base/files.h"

namespace bimetal::checkpoint {

void Sha256::add(std::span<const std::byte> bytes) {
  crypto_hash_sha256_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

std::string Sha256::finish() {
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest;
  crypto_hash_sha256_final(&state_, digest.data());
  std::string hex(2 * digest.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), digest.data(), digest.size());
  hex.pop_back();  // the terminating zero
  return hex;
}

std::string sha256_of(std::string_view bytes) {
  Sha256 sum;
  sum.add(std::as_bytes(std::span(bytes)));
  return sum.finish();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  InputFile file(path);
  Sha256 sum;
  std::vector<std::byte> piece(1 << 20);
  while (const auto count = file.read(piece)) sum.add(std::span(piece).first(count));
  return sum.finish();
}

}  // namespace bimetal::checkpoint
