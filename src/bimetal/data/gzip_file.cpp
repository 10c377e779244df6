#include "bimetal/data/gzip_file.h"

#include <fmt/format.h>

#include <cerrno>

#include "bimetal/base/error.h"

namespace bimetal::data {
namespace {

constexpr unsigned kBuffer = 256 * 1024;
constexpr std::size_t kReadAtOnce = std::size_t{4} << 20;

}  // namespace

GzipFile::GzipFile(const std::filesystem::path& path) : name_(path.string()) {
  errno = 0;
  file_.reset(gzopen(name_.c_str(), "rb"));
  if (!file_ && (errno == 0 || errno == ENOMEM)) {
    throw Error(ErrorCode::OutOfMemory, fmt::format("no memory to read '{}'", name_));
  }
  if (!file_) throw system_error(fmt::format("cannot open '{}'", name_), errno);
  gzbuffer(file_.get(), kBuffer);
}

std::size_t GzipFile::read(std::span<std::byte> bytes) {
  errno = 0;
  const int got = gzread(file_.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
  if (got != static_cast<int>(bytes.size())) require_sound_end(got);
  return static_cast<std::size_t>(got);
}

std::vector<std::byte> GzipFile::read_all() {
  std::vector<std::byte> all;
  for (std::size_t got = kReadAtOnce; got == kReadAtOnce;) {
    const auto have = all.size();
    all.resize(have + kReadAtOnce);
    got = read(std::span(all).subspan(have));
    all.resize(have + got);
  }
  return all;
}

/// A short read ends the file well, or hides a broken or truncated compression.
void GzipFile::require_sound_end(int got) const {
  int state = Z_OK;
  const char* words = gzerror(file_.get(), &state);
  if (state == Z_ERRNO) throw system_error(fmt::format("cannot read '{}'", name_), errno);
  if (state == Z_MEM_ERROR) {
    throw Error(ErrorCode::OutOfMemory, fmt::format("no memory to unpack '{}'", name_));
  }
  if (state == Z_BUF_ERROR) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("'{}' is truncated: its compressed data ends too early; fetch it again",
                            name_));
  }
  if (got >= 0 && state >= 0) return;
  throw Error(
      ErrorCode::CorruptData,
      fmt::format("the compressed data of '{}' is damaged ({}); fetch it again", name_, words));
}

std::uint64_t GzipFile::position() const {
  return static_cast<std::uint64_t>(gzoffset(file_.get()));
}

}  // namespace bimetal::data
