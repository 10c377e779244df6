#pragma once
// Files read and written in pieces, on their way between machines.

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>

namespace bimetal::data {

/// Errors are Error(System) and name the file.
class PieceReader {
 public:
  explicit PieceReader(std::filesystem::path path);

  /// The next bytes, as many as `piece` has. Error(CorruptData) if the file has no more.
  void read(std::span<std::byte> piece);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  friend class PieceWriter;

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// A new file. Errors are Error(System) and name it.
class PieceWriter {
 public:
  explicit PieceWriter(std::filesystem::path path);

  void write(std::span<const std::byte> piece);

  /// Brings all of it to the disk.
  void sync();

 private:
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, PieceReader::Close> file_;
};

}  // namespace bimetal::data
