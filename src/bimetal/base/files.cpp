#include "bimetal/base/files.h"

#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/os_files.h"
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

namespace fs = std::filesystem;
namespace {

/// The file that a link stands for, so that the link stays. Refuses devices, pipes and folders:
/// renaming would replace them.
fs::path real_target(const fs::path& target) {
  std::error_code error;
  const auto status = fs::status(target, error);
  if (status.type() == fs::file_type::not_found || error) return target;
  if (!fs::is_regular_file(status)) {
    throw Error(ErrorCode::System,
                "cannot write " + utf8_of_path(target) + ": it is no regular file");
  }
  return fs::is_symlink(target, error) ? fs::canonical(target, error) : target;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& target)
    : temporary_(real_target(target), TemporaryPath::Kind::file),
      file_(open_file(temporary_.path(), "wb")) {
  if (!file_) throw system_error("cannot write " + utf8_of_path(target), errno);
  remove_leftovers(temporary_.target().parent_path(), utf8_of_path(temporary_.target().filename()));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // its pointer may be null
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    throw system_error("cannot write " + utf8_of_path(temporary_.target()), errno);
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::commit() {
  sync_file(file_.get(), temporary_.target());
  file_.reset();
  temporary_.move_into_place();
}

void write_file_atomically(const fs::path& target, std::string_view contents) {
  AtomicFile file(target);
  file.write(contents);
  file.commit();
}

}  // namespace bimetal
