#include "bimetal/checkpoint/sha256.h"

#include <sodium.h>

#include <array>
#include <vector>

#include "bimetal/base/input_file.h"

namespace bimetal::checkpoint {
namespace {

class Sha256 {
 public:
  Sha256() { crypto_hash_sha256_init(&state_); }

  void add(std::string_view bytes) {
    crypto_hash_sha256_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()),
                              bytes.size());
  }
  std::string finish() {
    std::array<unsigned char, crypto_hash_sha256_BYTES> digest;
    crypto_hash_sha256_final(&state_, digest.data());
    std::string hex(2 * digest.size() + 1, '\0');
    sodium_bin2hex(hex.data(), hex.size(), digest.data(), digest.size());
    hex.pop_back();  // the terminating zero
    return hex;
  }

 private:
  crypto_hash_sha256_state state_;
};

}  // namespace

std::string sha256_of(std::string_view bytes) {
  Sha256 sum;
  sum.add(bytes);
  return sum.finish();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  InputFile file(path);
  Sha256 sum;
  std::vector<char> piece(1 << 20);
  while (const auto count = file.read(std::as_writable_bytes(std::span(piece)))) {
    sum.add({piece.data(), count});
  }
  return sum.finish();
}

}  // namespace bimetal::checkpoint
