#include "bimetal/base/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/unicode/utf8.h"

namespace bimetal {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, int cause) {
  throw system_error("cannot read " + utf8_of_path(path), cause);
}

}  // namespace

namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSuffix = ".tmp";
constexpr std::size_t kDigits = 16;
constexpr int kTries = 100;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::string random_digits() {
  std::random_device random;  // not a seeded generator: two ranks may start alike
  const std::uint64_t high = random();
  return fmt::format("{:016x}", high << 32 | random());
}

[[noreturn]] void fail(const fs::path& target, const std::error_code& cause) {
  throw system_error("cannot write " + utf8_of_path(target), cause);
}

/// The name of the target that something of this name was to become, if it is a temporary path's.
std::optional<std::string_view> target_of(std::string_view name) {
  constexpr std::size_t kTail = 1 + kDigits + kSuffix.size();
  if (name.size() < 1 + kTail || name[0] != '.' || !name.ends_with(kSuffix)) return std::nullopt;
  const auto tail = name.substr(name.size() - kTail);
  const auto digits = tail.substr(1, kDigits);
  if (tail[0] != '.' || digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  return name.substr(1, name.size() - 1 - kTail);
}

/// The same for all that differ in their numbers alone.
std::string without_numbers(std::string_view name) {
  std::string kind;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit || kind.empty() || kind.back() != '0') kind += digit ? '0' : c;
  }
  return kind;
}

bool is_meant(std::string_view target, std::string_view name, Leftovers which) {
  switch (which) {
    case Leftovers::of_name: return target == name;
    case Leftovers::of_numbering: return without_numbers(target) == without_numbers(name);
    case Leftovers::of_all: return true;
  }
  return false;
}

void rename_or_fail(const fs::path& from, const fs::path& to, const fs::path& target) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(target, error);
}

/// For file systems that cannot swap two names: the old folder is put aside first, and comes back
/// if the new one cannot take its place.
void replace_in_two_steps(const fs::path& path, const fs::path& target) {
  const TemporaryPath aside(target, TemporaryPath::Kind::folder);
  std::error_code error;
  fs::remove(aside.path(), error);  // Windows renames no folder over an empty one
  rename_or_fail(target, aside.path(), target);
  try {
    rename_or_fail(path, target, target);
  } catch (const Error&) {
    rename_or_fail(aside.path(), target, target);
    throw;
  }
}

}  // namespace

TemporaryPath::TemporaryPath(fs::path target, Kind kind) : target_(std::move(target)), kind_(kind) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    path_ =
        folder_of(target_) / path_of_utf8(fmt::format(".{}.{}{}", utf8_of_path(target_.filename()),
                                                      random_digits(), kSuffix));
    if (!create()) continue;
    claim_ = std::make_unique<PathClaim>(path_);
    // Between the two lines above somebody else's clean-up may have taken it for a leftover.
    const auto outcome = claim_->outcome();
    if (outcome == PathClaim::Outcome::held || outcome == PathClaim::Outcome::unsupported) return;
  }
  fail(target_, std::make_error_code(std::errc::file_exists));
}

TemporaryPath::~TemporaryPath() {
  std::error_code error;
  fs::remove_all(path_, error);
  if (error) log(LogLevel::warning, "cannot remove {}: {}", utf8_of_path(path_), error.message());
}

bool TemporaryPath::create() {
  if (kind_ == Kind::folder) {
    std::error_code error;
    const bool created = fs::create_directory(path_, error);
    if (error) fail(target_, error);
    return created;
  }
  std::FILE* file = open_file(path_, "wbx");
  if (file) {
    std::fclose(file);
  } else if (errno != EEXIST) {
    fail(target_, std::error_code(errno, std::generic_category()));
  }
  return file != nullptr;
}

void TemporaryPath::move_into_place() {
  if (kind_ == Kind::folder) sync_directory(path_);
  std::error_code ignored;
  if (kind_ == Kind::folder && fs::exists(target_, ignored)) {
    if (!exchange_paths(path_, target_)) replace_in_two_steps(path_, target_);
  } else {
    rename_or_fail(path_, target_, target_);
  }
  sync_directory(folder_of(target_));
}

void remove_leftovers(const fs::path& folder, std::string_view name, Leftovers which) noexcept try {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder)) {
    const auto hidden = utf8_of_path(entry.path().filename());
    const auto target = target_of(hidden);
    if (target && is_meant(*target, name, which)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) {
    const PathClaim claim(path);
    if (claim.outcome() != PathClaim::Outcome::held) continue;
    log(LogLevel::info, "removing {}, left by a process that ended early", utf8_of_path(path));
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
} catch (const std::exception& error) {
  log(LogLevel::debug, "cannot look for leftovers in {}: {}", utf8_of_path(folder), error.what());
}

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
