#pragma once
// Reads a file, and distinguishes a file that is missing from one that the system refuses to open.
// A reader that can do without a missing file must not go on without one that it may not open now.
//
// File operations beyond the standard library: flushing to the disk, swapping two names, marking a
// path as in use, and finding the file of a descriptor.
//
// A file or folder under construction. It is made beside its final place under another name, and
// moved there in one step when it is complete. So readers of the final name see the old or the new
// contents, never a part.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
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

/// The value of an environment variable; empty where it is not set.
std::filesystem::path path_in_environment(const char* variable);

/// Named `.NAME.<16 hex digits>.tmp` beside its target. Removed in the end unless moved. Errors are
/// Error(System) and name the target. Not thread-safe.
class TemporaryPath {
 public:
  enum class Kind { file, folder };

  /// Creates it, empty.
  TemporaryPath(std::filesystem::path target, Kind kind);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  const std::filesystem::path& target() const noexcept { return target_; }

  /// Takes the target's place; whatever stood there is gone. The contents must be on the disk.
  void move_into_place();

 private:
  bool create();

  std::filesystem::path target_;
  std::filesystem::path path_;
  Kind kind_;
  std::unique_ptr<PathClaim> claim_;
};

/// The targets whose leftovers are meant, beside a name.
enum class Leftovers {
  of_name,       ///< of that very name
  of_numbering,  ///< of names, too, that differ in their numbers alone: step-00000001, step-20
  of_all         ///< of any, whatever the name
};

/// Removes the files that killed processes left in `folder` while making these targets. Files of a
/// living process stay. All files stay if the file system cannot tell (no locks). Never throws:
/// leftovers only take room.
void remove_leftovers(const std::filesystem::path& folder, std::string_view name,
                      Leftovers which = Leftovers::of_name) noexcept;

/// Whether a file operation failed because nothing has that name. Everything else (missing rights,
/// too many open files, a share that has gone) says nothing about the file.
bool is_missing(const std::error_code& error) noexcept;

/// From its beginning, or where seek() leads, towards its end. Errors are Error(System), name the
/// file and give the cause. Not thread-safe.
class InputFile {
 public:
  /// A file that must be there.
  explicit InputFile(const std::filesystem::path& path);

  /// Nothing if no file has that name.
  static std::optional<InputFile> find(const std::filesystem::path& path);

  /// The next bytes, as many as `out` has; fewer at the end alone.
  std::size_t read(std::span<std::byte> out);

  /// The next read begins at this byte.
  void seek(std::uint64_t offset);

  /// All that is left.
  std::string read_all();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  InputFile(std::filesystem::path path, std::FILE* file);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// Writes a file so that its name never refers to a partial one: see TemporaryPath.

/// A new file, or new contents for an old one (a symbolic link is followed). Without commit() the
/// target stays as it was. Errors are Error(System), name the target and give the cause; a target
/// that exists and is no regular file is one, too. Not thread-safe.
class AtomicFile {
 public:
  /// Also removes what killed processes left of the same target.
  explicit AtomicFile(const std::filesystem::path& target);

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  /// Brings all to the disk and moves it into place. At most once, and nothing after it.
  void commit();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  TemporaryPath temporary_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// The whole of it in one call.
void write_file_atomically(const std::filesystem::path& target, std::string_view contents);

}  // namespace bimetal
