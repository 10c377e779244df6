#pragma once
// What the file system says about a file without its being read (POSIX).

#include <compare>
#include <cstdint>
#include <filesystem>

namespace bimetal::data {

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

}  // namespace bimetal::data
