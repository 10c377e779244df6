#include <fmt/format.h>
#include <io.h>
#include <windows.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/unicode/utf8.h"

namespace bimetal {
namespace {

/// The identity of a file or folder, whatever its name, until it is removed.
struct Identity {
  DWORD volume;
  DWORD high;
  DWORD low;

  friend bool operator==(const Identity&, const Identity&) = default;
};

/// Nothing, with GetLastError(), where the path cannot be looked at.
std::optional<Identity> identify(const std::filesystem::path& path) {
  constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
  const HANDLE file =
      CreateFileW(path.c_str(), 0, kShareAll, nullptr, OPEN_EXISTING,
                  FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT, nullptr);
  if (file == INVALID_HANDLE_VALUE) return std::nullopt;
  BY_HANDLE_FILE_INFORMATION info;
  const BOOL known = GetFileInformationByHandle(file, &info);
  const DWORD error = GetLastError();
  CloseHandle(file);
  SetLastError(error);
  if (!known) return std::nullopt;
  return Identity{info.dwVolumeSerialNumber, info.nFileIndexHigh, info.nFileIndexLow};
}

PathClaim::Outcome why_unknown() {
  const DWORD error = GetLastError();
  return error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND
             ? PathClaim::Outcome::gone
             : PathClaim::Outcome::unsupported;
}

}  // namespace

void sync_file(std::FILE* file, const std::filesystem::path& path) {
  if (std::fflush(file) != 0 || _commit(_fileno(file)) != 0) {
    throw system_error("cannot write " + utf8_of_path(path), errno);
  }
}

/// Names reach the disk by the file system's own journal; there is no call for it.
void sync_directory(const std::filesystem::path&) {}

/// There is no such operation.
bool exchange_paths(const std::filesystem::path&, const std::filesystem::path&) {
  return false;
}

/// A lock on the path itself would bar its owner from renaming it. A mutex that is named after the
/// file's identity does not, and is gone with the last process that has it open.
PathClaim::PathClaim(const std::filesystem::path& path) {
  const auto identity = identify(path);
  if (!identity) {
    outcome_ = why_unknown();
    return;
  }
  const std::string name = fmt::format("Global\\bimetal-{:08x}-{:08x}{:08x}", identity->volume,
                                       identity->high, identity->low);
  const HANDLE mutex = CreateMutexA(nullptr, FALSE, name.c_str());
  if (!mutex) {
    outcome_ = GetLastError() == ERROR_ACCESS_DENIED ? Outcome::busy : Outcome::unsupported;
    return;
  }
  if (GetLastError() == ERROR_ALREADY_EXISTS) {
    CloseHandle(mutex);
    outcome_ = Outcome::busy;
    return;
  }
  handle_ = reinterpret_cast<std::intptr_t>(mutex);
  outcome_ = identify(path) == identity ? Outcome::held : Outcome::gone;
}

bool is_terminal(int descriptor) {
  return _isatty(descriptor) != 0;
}

PathClaim::~PathClaim() {
  if (handle_ != -1) CloseHandle(reinterpret_cast<HANDLE>(handle_));
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  InputFile file(path);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw system_error("cannot read " + path.string(), error);
  read_.resize(static_cast<std::size_t>(size));
  read_.resize(file.read(read_));
  bytes_ = read_;
}

MappedFile::~MappedFile() = default;

std::FILE* open_file(const std::filesystem::path& path, const char* mode) {
  return _wfopen(path.c_str(), wide_of_utf8(mode).c_str());
}

std::filesystem::path path_in_environment(const char* variable) {
  const wchar_t* const value = _wgetenv(wide_of_utf8(variable).c_str());
  return value ? value : L"";
}

}  // namespace bimetal
