#include "bimetal/data/transfer/file_pieces.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/os_files.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

std::FILE* open_file(const fs::path& path, const char* mode) {
  if (std::FILE* file = std::fopen(path.c_str(), mode)) return file;
  throw system_error(fmt::format("cannot {} '{}'", *mode == 'r' ? "read" : "write", path.string()),
                     errno);
}

}  // namespace

PieceReader::PieceReader(fs::path path) : path_(std::move(path)), file_(open_file(path_, "rb")) {}

void PieceReader::read(std::span<std::byte> piece) {
  errno = 0;
  if (std::fread(piece.data(), 1, piece.size(), file_.get()) == piece.size()) return;
  if (std::ferror(file_.get())) {
    throw system_error(fmt::format("cannot read '{}'", path_.string()), errno);
  }
  throw Error(ErrorCode::CorruptData,
              fmt::format("'{}' became shorter while it was sent; leave the data alone while a job "
                          "starts",
                          path_.string()));
}

PieceWriter::PieceWriter(fs::path path) : path_(std::move(path)), file_(open_file(path_, "wb")) {}

void PieceWriter::write(std::span<const std::byte> piece) {
  if (std::fwrite(piece.data(), 1, piece.size(), file_.get()) == piece.size()) return;
  throw system_error(fmt::format("cannot write '{}'", path_.string()), errno);
}

void PieceWriter::sync() {
  sync_file(file_.get(), path_);
}

}  // namespace bimetal::data
