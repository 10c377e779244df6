#pragma once
// Writes a file so that its name never refers to a partial one: see base/temporary_path.h.

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "bimetal/base/temporary_path.h"

namespace bimetal {

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
