#include "bimetal/base/input_file.h"

#include <array>
#include <cerrno>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/unicode/open_file.h"
#include "bimetal/base/unicode/utf8_path.h"

namespace bimetal {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, int cause) {
  throw system_error("cannot read " + utf8_of_path(path), cause);
}

}  // namespace

bool is_missing(const std::error_code& error) noexcept {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

InputFile::InputFile(fs::path path, std::FILE* file) : path_(std::move(path)), file_(file) {}

InputFile::InputFile(const fs::path& path) : InputFile(path, open_file(path, "rb")) {
  if (!file_) fail(path, errno);
}

std::optional<InputFile> InputFile::find(const fs::path& path) {
  std::FILE* file = open_file(path, "rb");
  if (file) return InputFile(path, file);
  if (const int cause = errno; !is_missing({cause, std::generic_category()})) fail(path, cause);
  return std::nullopt;
}

std::size_t InputFile::read(std::span<std::byte> out) {
  if (out.empty()) return 0;  // its pointer may be null
  errno = 0;
  const auto count = std::fread(out.data(), 1, out.size(), file_.get());
  if (count < out.size() && std::ferror(file_.get())) fail(path_, errno);
  return count;
}

void InputFile::seek(std::uint64_t offset) {
#ifdef _WIN32
  const int failed = _fseeki64(file_.get(), static_cast<__int64>(offset), SEEK_SET);
#else
  const int failed = fseeko(file_.get(), static_cast<off_t>(offset), SEEK_SET);
#endif
  if (failed != 0) fail(path_, errno);
}

std::string InputFile::read_all() {
  std::string text;
  std::array<char, 1 << 14> piece;
  while (const auto count = read(std::as_writable_bytes(std::span(piece)))) {
    text.append(piece.data(), count);
  }
  return text;
}

}  // namespace bimetal
