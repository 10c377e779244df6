#include "bimetal/data/transfer/content.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "bimetal/data/gzip_file.h"
#include "bimetal/net/sodium.h"

namespace bimetal::data {
namespace {

constexpr std::size_t kHashedAtATime = std::size_t{1} << 20;

class Hash {
 public:
  Hash() {
    net::ensure_sodium();
    crypto_generichash_init(&state_, nullptr, 0, sizeof(Digest));
  }
  void add(const void* bytes, std::size_t size) {
    crypto_generichash_update(&state_, static_cast<const unsigned char*>(bytes), size);
  }
  Digest finish() {
    Digest digest;
    crypto_generichash_final(&state_, reinterpret_cast<unsigned char*>(digest.data()),
                             digest.size());
    return digest;
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
  Hash hash;
  hash.add(bytes.data(), bytes.size());
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

Content content_of(const std::filesystem::path& file, progress::Meter& meter) {
  GzipFile stream(file);
  Content content;
  Hash hash;
  std::vector<std::byte> piece(kHashedAtATime);
  std::uint64_t position = 0;  // in the file as it lies there
  for (std::size_t got = piece.size(); got == piece.size();) {
    got = stream.read(piece);
    hash.add(piece.data(), got);
    content.size += got;
    const auto before = std::exchange(position, stream.position());
    meter.advance(position - before);
  }
  content.digest = hash.finish();
  return content;
}

}  // namespace bimetal::data
