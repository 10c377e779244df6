#pragma once
// Checksums of big files are kept, so that a job's start does not read a data set of many gigabytes
// each time. They lie in the cache (cache.h), one small file for each path.

#include <cstdint>
#include <filesystem>
#include <optional>

#include "bimetal/data/transfer/content.h"
#include "bimetal/data/transfer/file_stamp.h"

namespace bimetal::data {

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
