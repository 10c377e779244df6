#pragma once
// A file's bytes as memory. The system reads them when they are used.

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace bimetal {

/// Read-only. Mapped where the system can (Linux, macOS), else read whole. The file must not be
/// shortened while it is open. Errors are Error(System) and name the file; OutOfMemory. The bytes
/// may be read by several threads.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::vector<std::byte> read_;  ///< where nothing can be mapped
};

}  // namespace bimetal
