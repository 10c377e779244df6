#include "bimetal/data/content.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

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

struct CloseGzip {
  void operator()(gzFile_s* file) const { gzclose_r(file); }
};

/// What zlib says of a read that brought fewer bytes than were asked for: an end, or damage.
void require_sound_end(gzFile file, int got, const std::string& name) {
  int state = Z_OK;
  const char* words = gzerror(file, &state);
  if (state == Z_ERRNO) throw system_error(fmt::format("cannot read '{}'", name), errno);
  if (state == Z_BUF_ERROR) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("'{}' is truncated: its compressed data ends too early; fetch it "
                            "again",
                            name));
  }
  if (got >= 0 && state >= 0) return;
  throw Error(
      ErrorCode::CorruptData,
      fmt::format("the compressed data of '{}' is damaged ({}); fetch it again", name, words));
}

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

Content content_of(const std::filesystem::path& file, Meter& meter) {
  const auto name = file.string();
  errno = 0;
  const std::unique_ptr<gzFile_s, CloseGzip> stream(gzopen(name.c_str(), "rb"));
  if (!stream) throw system_error(fmt::format("cannot open '{}'", name), errno);
  gzbuffer(stream.get(), 256 * 1024);

  Content content;
  Hash hash;
  std::vector<std::byte> piece(kHashedAtATime);
  z_off_t position = 0;  // in the file as it lies there
  for (;;) {
    errno = 0;
    const int got = gzread(stream.get(), piece.data(), static_cast<unsigned>(piece.size()));
    const bool last = got < static_cast<int>(piece.size());
    if (last) require_sound_end(stream.get(), got, name);
    hash.add(piece.data(), static_cast<std::size_t>(got));
    content.size += static_cast<std::uint64_t>(got);
    const auto before = std::exchange(position, gzoffset(stream.get()));
    meter.advance(static_cast<std::uint64_t>(position - before));
    if (last) break;
  }
  content.digest = hash.finish();
  return content;
}

}  // namespace bimetal::data
