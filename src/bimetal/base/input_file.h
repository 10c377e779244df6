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
#include <system_error>

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

}  // namespace bimetal
