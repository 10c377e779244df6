#pragma once
// A file as it reads once unpacked: gzip's format where the file begins so, else the bytes as they
// lie there.

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bimetal::data {

/// Not thread-safe.
class GzipFile {
 public:
  /// Throws Error(System) if the file cannot be opened, Error(OutOfMemory).
  explicit GzipFile(const std::filesystem::path& path);

  /// Reads up to bytes.size() bytes, at most 2 GiB; fewer only at the end of the file, whose
  /// checksum has then been compared. Throws Error(CorruptData) for damaged or truncated
  /// compression, Error(System), Error(OutOfMemory); each names the file.
  std::size_t read(std::span<std::byte> bytes);

  /// All that is left of it. Errors as read()'s.
  std::vector<std::byte> read_all();

  /// Bytes taken so far of the file as it lies on the disk.
  std::uint64_t position() const;

  const std::string& name() const noexcept { return name_; }

 private:
  struct Close {
    void operator()(gzFile_s* file) const { gzclose_r(file); }
  };

  void require_sound_end(int got) const;

  std::string name_;
  std::unique_ptr<gzFile_s, Close> file_;
};

}  // namespace bimetal::data
