#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"

#ifdef __linux__
#include <sys/syscall.h>
#endif

namespace bimetal {
namespace {

/// Asks the drive, too, to empty its cache where plain fsync does not (macOS).
int sync_descriptor(int descriptor) {
#ifdef F_FULLFSYNC
  if (fcntl(descriptor, F_FULLFSYNC) == 0) return 0;
#endif
  return fsync(descriptor);
}

/// Errors by which a file system says that it does not do this, rather than that it went wrong.
bool knows_no_syncing(int error) {
  constexpr std::array kErrors = {EINVAL, ENOTSUP, EOPNOTSUPP, ENOSYS};  // two may be one number
  return std::ranges::find(kErrors, error) != kErrors.end();
}

PathClaim::Outcome lock(int descriptor, const std::filesystem::path& path) {
  using enum PathClaim::Outcome;
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? busy : unsupported;
  struct stat opened {
  }, named{};
  const bool same = fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
                    opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  return same ? held : gone;
}

}  // namespace

void sync_file(std::FILE* file, const std::filesystem::path& path) {
  if (std::fflush(file) != 0 || sync_descriptor(fileno(file)) != 0) {
    throw system_error("cannot write " + path.string(), errno);
  }
}

void sync_directory(const std::filesystem::path& path) {
  const auto& named = path.empty() ? std::filesystem::path(".") : path;
  const int descriptor = open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    // One may write into a folder that one may not read.
    if (errno == EACCES || errno == EPERM || errno == ENOENT) return;
    throw system_error("cannot write the names in " + named.string(), errno);
  }
  const int failed = sync_descriptor(descriptor) != 0 ? errno : 0;
  close(descriptor);
  if (failed == 0 || knows_no_syncing(failed)) return;
  throw system_error("cannot write the names in " + named.string(), failed);
}

bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b) {
#if defined(RENAME_EXCHANGE) && defined(SYS_renameat2)
  // By the system call: the C library of older systems (before glibc 2.28) has no function for it.
  return syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#elif defined(RENAME_SWAP)
  return renamex_np(a.c_str(), b.c_str(), RENAME_SWAP) == 0;
#else
  return false;
#endif
}

PathClaim::PathClaim(const std::filesystem::path& path) {
  handle_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (handle_ < 0) {
    outcome_ = errno == ENOENT ? Outcome::gone : Outcome::unsupported;
  } else {
    outcome_ = lock(static_cast<int>(handle_), path);
  }
}

bool is_terminal(int descriptor) {
  return isatty(descriptor) != 0;
}

PathClaim::~PathClaim() {
  if (handle_ >= 0) close(static_cast<int>(handle_));
}

namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw system_error("cannot read " + path.string(), errno);
  }
  ~Descriptor() { close(descriptor_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) throw system_error("cannot read " + path.string(), errno);
  if (!S_ISREG(status.st_mode)) throw system_error("cannot read " + path.string(), EISDIR);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // nothing can be mapped of it
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw system_error("cannot map " + path.string(), errno);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::FILE* open_file(const std::filesystem::path& path, const char* mode) {
  return std::fopen(path.c_str(), mode);
}

std::filesystem::path path_in_environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value ? value : "";
}

}  // namespace bimetal
