#include "bimetal/base/atomic_file.h"

#include <cerrno>
#include <string>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/base/unicode/open_file.h"
#include "bimetal/base/unicode/utf8_path.h"

namespace bimetal {
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
