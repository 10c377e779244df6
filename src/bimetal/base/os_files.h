#pragma once
// File operations beyond the standard library: flushing to the disk, swapping two names, marking a
// path as in use, and finding the file of a descriptor.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <vector>

namespace bimetal {

/// Returns once all that was written to `file` is on the disk. Error(System) names `path`.
void sync_file(std::FILE* file, const std::filesystem::path& path);

/// The same for the names in a folder. Folders that know no syncing (some network file systems) are
/// left to the system.
void sync_directory(const std::filesystem::path& path);

/// Swaps what two names stand for, in one step. False where the file system has no such operation;
/// nothing is changed then.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// Whether the descriptor leads to a terminal, whatever that understands.
bool is_terminal(int descriptor);

/// Marks a file or folder as being worked on by this process. The mark goes with its holder,
/// however that ends (kill -9 included), and says nothing about the path's contents: it is an
/// advisory lock. (On Windows it holds among the processes of one machine.)
class PathClaim {
 public:
  enum class Outcome {
    held,         ///< it is ours until this object ends
    busy,         ///< somebody else's
    gone,         ///< the path has been removed or replaced meanwhile
    unsupported,  ///< the file system has no locks
  };

  explicit PathClaim(const std::filesystem::path& path);
  ~PathClaim();
  PathClaim(const PathClaim&) = delete;
  PathClaim& operator=(const PathClaim&) = delete;

  Outcome outcome() const noexcept { return outcome_; }

 private:
  Outcome outcome_;
  std::intptr_t handle_ = -1;  ///< the system's
};

// A file's bytes as memory. The system reads them when they are used.

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

// Opens files with any letters in their names. Windows' own encoding of narrow text lacks some
// letters, and std::fopen and std::getenv lose them.

/// As std::fopen.
std::FILE* open_file(const std::filesystem::path& path, const char* mode);

/// What an environment variable holds; empty where it is not set.
std::filesystem::path path_in_environment(const char* variable);

}  // namespace bimetal
