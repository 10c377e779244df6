#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/data/gzip_file.h"
#include "bimetal/data/transfer/cache.h"

namespace bimetal::data {
namespace {

constexpr std::size_t kHashedAtATime = std::size_t{1} << 20;

}  // namespace

Content content_of(const std::filesystem::path& file, progress::Meter& meter) {
  GzipFile stream(file);
  Content content;
  Hash hash;
  std::vector<std::byte> piece(kHashedAtATime);
  std::uint64_t position = 0;  // in the file as it lies there
  for (std::size_t got = piece.size(); got == piece.size();) {
    got = stream.read(piece);
    hash.add(std::span(piece).first(got));
    content.size += got;
    const auto before = std::exchange(position, stream.position());
    meter.advance(position - before);
  }
  content.digest = hash.finish();
  return content;
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kHeading = "bimetal-checksum-1";
// Coarser than the clock of any file system (FAT: 2 s).
constexpr std::chrono::seconds kClockTick{3};

fs::path note_of(const fs::path& file) {
  return cache_root() / "checksums" / hex(digest_of(fs::absolute(file).string()), 32);
}

bool changed_lately(const FileStamp& stamp) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(stamp.modified_ns) + kClockTick > now;
}

std::optional<Digest> digest_from(const std::string& text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const auto pair = text.substr(2 * i, 2);
    if (pair.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
    digest[i] = static_cast<std::byte>(std::stoi(pair, nullptr, 16));
  }
  return digest;
}

}  // namespace

std::optional<Content> remembered_content(const fs::path& file, const FileStamp& stamp) try {
  std::ifstream note(note_of(file));
  std::string heading, digest;
  FileStamp then;
  Content content;
  note >> heading >> then.size >> then.modified_ns >> content.size >> digest;
  if (!note || heading != kHeading) return std::nullopt;
  if (then.size != stamp.size || then.modified_ns != stamp.modified_ns) return std::nullopt;
  const auto known = digest_from(digest);
  if (!known) return std::nullopt;
  content.digest = *known;
  return content;
} catch (const Error&) {
  return std::nullopt;  // no cache, nothing remembered
}

void remember_content(const fs::path& file, const FileStamp& stamp, const Content& content,
                      std::uint64_t worth) try {
  if (stamp.size < worth || changed_lately(stamp)) return;
  const auto note = note_of(file);
  std::error_code ignored;  // the next line tells
  fs::create_directories(note.parent_path(), ignored);
  write_file_atomically(note, fmt::format("{} {} {} {} {}\n", kHeading, stamp.size,
                                          stamp.modified_ns, content.size, hex(content.digest)));
} catch (const Error& error) {
  log(LogLevel::info, "a checksum is not kept: {}", error.what());
}

Content known_content(const fs::path& file, progress::Meter& meter) {
  const auto stamp = file_stamp(file);
  meter.expect(stamp.size);
  if (const auto content = remembered_content(file, stamp)) {
    meter.advance(stamp.size);
    return *content;
  }
  const auto content = content_of(file, meter);
  remember_content(file, stamp, content);
  return content;
}

FileStamp file_stamp(const std::filesystem::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) {
    throw system_error(fmt::format("cannot read '{}'", file.string()), errno);
  }
#ifdef __APPLE__
  const auto& modified = found.st_mtimespec;
#else
  const auto& modified = found.st_mtim;
#endif
  return {.size = static_cast<std::uint64_t>(found.st_size),
          .modified_ns = std::int64_t{modified.tv_sec} * 1'000'000'000 + modified.tv_nsec,
          .device = static_cast<std::uint64_t>(found.st_dev),
          .number = static_cast<std::uint64_t>(found.st_ino)};
}

}  // namespace bimetal::data
