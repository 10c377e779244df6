#pragma once
// What a file holds, in short: by this, copies on different machines are compared.

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "bimetal/data/digest.h"
#include "bimetal/progress/observer.h"

namespace bimetal::data {

/// Size and digest of what a file holds. A gzipped file counts as what it was before: a compressed
/// and a plain copy are the same.
struct Content {
  std::uint64_t size = 0;  ///< bytes, uncompressed
  Digest digest{};
  bool operator==(const Content&) const = default;
};

/// Reads the whole file, in pieces; `meter` advances by the bytes of the file. Errors: System if it
/// cannot be read, CorruptData for damaged compression, Aborted once the meter is stopped.
Content content_of(const std::filesystem::path& file, progress::Meter& meter);

// What the file system says about a file without its being read (POSIX).

/// Two files of one machine with the same stamp are one file that has not changed in between, or
/// changed within the clock's tick.
struct FileStamp {
  std::uint64_t size = 0;        ///< bytes
  std::int64_t modified_ns = 0;  ///< of the file system's clock
  std::uint64_t device = 0, number = 0;
  auto operator<=>(const FileStamp&) const = default;
};

/// Error(System) names the file.
FileStamp file_stamp(const std::filesystem::path& file);

// Checksums of big files are kept, so that a job's start does not read a data set of many gigabytes
// each time. They lie in the cache (cache.h), one small file for each path.

/// Smaller files are read again sooner than it is worth leaving something behind.
inline constexpr std::uint64_t kWorthRemembering = std::uint64_t{64} << 20;

/// What was remembered of a file at this path with this size and time of change; nothing otherwise.
std::optional<Content> remembered_content(const std::filesystem::path& file,
                                          const FileStamp& stamp);

/// Remembers it for the next time. Left out where that would be no use (a small file) or not safe
/// (a file changed so lately that another change might bear the same time), and where the cache
/// cannot be written: the file is then read again.
void remember_content(const std::filesystem::path& file, const FileStamp& stamp,
                      const Content& content, std::uint64_t worth = kWorthRemembering);

/// Remembered, or read and then remembered. `meter` expects and advances by the bytes of the file
/// either way. Errors of content_of().
Content known_content(const std::filesystem::path& file, progress::Meter& meter);

}  // namespace bimetal::data
