// Memory without a name (memfd_create), which others open through its maker's descriptor. Sealed
// against changes of size, so that no access to it can end in SIGBUS.
//
// Bells ring by futex, which works between processes because it is not told to be private.

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::net {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

/// The name of a mapping that the system shows, to tell whose segment it is. Nothing looks a
/// segment up by it.
constexpr const char* kLabel = "bimetal-";

std::string own_label() {
  return fmt::format("{}{}", kLabel, ::getpid());
}

/// By the system call: the C library of older systems (before glibc 2.27) has no function for it.
int make_nameless(const std::string& label) {
  return static_cast<int>(
      ::syscall(SYS_memfd_create, label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

std::span<std::byte> map(int file, std::size_t bytes) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) throw system_error("cannot map shared memory", errno);
  return {static_cast<std::byte*>(memory), bytes};
}

void set_aside(int file, std::size_t bytes) {
  int failed = 0;
  do {
    failed = ::fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == 0 || failed == EOPNOTSUPP || failed == ENOSYS) return;
  throw system_error(fmt::format("cannot set {} bytes of shared memory aside", bytes), failed);
}

}  // namespace

SharedMemory SharedMemory::create(std::size_t bytes) {
  SharedMemory made;
  made.handle_ = make_nameless(own_label());
  if (made.handle_ < 0) throw system_error("cannot make shared memory", errno);
  if (::ftruncate(made.handle_, static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(made.handle_, F_ADD_SEALS, kSizeSeals) != 0) {
    throw system_error("cannot set the size of shared memory", errno);
  }
  set_aside(made.handle_, bytes);
  made.bytes_ = map(made.handle_, bytes);
  made.address_.process = static_cast<std::uint64_t>(::getpid());
  made.address_.handle = static_cast<std::uint64_t>(made.handle_);
  made.write_nonce();
  return made;
}

SharedMemory SharedMemory::open(const SegmentAddress& address, std::size_t bytes) {
  const auto path = fmt::format("/proc/{}/fd/{}", address.process, address.handle);
  // The path may be of anything: it is opened without waiting for it, and without taking it over.
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    throw Error(ErrorCode::Unsupported, system_error("cannot open " + path, errno).what());
  }
  struct ::stat status {};
  const bool fits = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                    static_cast<std::size_t>(status.st_size) == bytes;
  const int seals = fits ? ::fcntl(file, F_GET_SEALS) : -1;
  SharedMemory opened;
  if (seals >= 0 && (seals & kSizeSeals) == kSizeSeals) {
    try {
      opened.bytes_ = map(file, bytes);
    } catch (...) {
      ::close(file);
      throw;
    }
  }
  ::close(file);
  if (!opened) throw Error(ErrorCode::Unsupported, path + " is no shared memory of this group");
  opened.accept(address);
  return opened;
}

// Each mapping has a line "begin-end access offset device inode   /memfd:label (deleted)" and lines
// "Rss:      4 kB" and the like below it.
std::uint64_t SharedMemory::borrowed_bytes() {
  const auto any = fmt::format("/memfd:{}", kLabel);
  const auto own = fmt::format("/memfd:{} ", own_label());
  std::ifstream file("/proc/self/smaps");
  std::uint64_t kib = 0;
  bool borrowed = false;
  for (std::string line; std::getline(file, line);) {
    if (const auto at = line.find(any); at != std::string::npos) {
      borrowed = line.compare(at, own.size(), own) != 0;
    } else if (borrowed && line.starts_with("Rss:")) {
      kib += std::strtoull(line.c_str() + 4, nullptr, 10);
      borrowed = false;
    }
  }
  return kib * 1024;
}

void SharedMemory::forget_name() noexcept {
  if (handle_ >= 0) ::close(std::exchange(handle_, -1));
}

SharedMemory::~SharedMemory() {
  forget_name();
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Bell::Bell(BellWord& word, const SegmentAddress&) : word_(&word) {}

void Bell::sleep(std::uint32_t seen, std::chrono::microseconds timeout) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000);
  time.tv_nsec = static_cast<long>(timeout.count() % 1'000'000) * 1000;
  ::syscall(SYS_futex, word_, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void Bell::ring() {
  word_->fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace bimetal::net
