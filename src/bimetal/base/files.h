#pragma once
// Reads a file, and distinguishes a file that is missing from one that the system refuses to open.
// A reader that can do without a missing file must not go on without one that it may not open now.

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

#include "bimetal/base/temporary_path.h"

namespace bimetal {

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

  /// What is read next begins at this byte.
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

// Writes a file so that its name never refers to a partial one: see base/temporary_path.h.

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
