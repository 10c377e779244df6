// Systems without memfd_create (macOS): POSIX shared memory under a random name, which is taken
// away as soon as everybody has opened it.
//
// Nor have all supported versions of the system a call by which processes wake each other through a
// word of memory: who waits for a bell looks again at growing intervals.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::net {
namespace {

std::span<std::byte> map(int file, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw system_error("cannot map shared memory", errno);
  return {static_cast<std::byte*>(memory), bytes};
}

// macOS allows names of 31 characters.
std::string random_name() {
  ensure_sodium();
  std::uint64_t number = 0;
  randombytes_buf(&number, sizeof(number));
  return fmt::format("/bimetal-{:016x}", number);
}

constexpr std::chrono::microseconds kShortest{50}, kLongest{1000};

}  // namespace

SharedMemory SharedMemory::create(std::size_t bytes) {
  SharedMemory made;
  const auto name = random_name();
  made.handle_ = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (made.handle_ < 0) throw system_error("cannot make shared memory", errno);
  made.address_.name = name;
  made.address_.process = static_cast<std::uint64_t>(::getpid());
  if (::ftruncate(made.handle_, static_cast<off_t>(bytes)) != 0) {
    throw system_error("cannot set the size of shared memory", errno);
  }
  made.bytes_ = map(made.handle_, bytes);
  made.write_nonce();
  return made;
}

SharedMemory SharedMemory::open(const SegmentAddress& address, std::size_t bytes) {
  const int file = ::shm_open(address.name.c_str(), O_RDWR, 0);
  if (file < 0) {
    throw Error(ErrorCode::Unsupported, system_error("cannot open " + address.name, errno).what());
  }
  struct ::stat status {};
  // Sizes are rounded up to pages.
  const bool fits =
      ::fstat(file, &status) == 0 && static_cast<std::size_t>(status.st_size) >= bytes;
  SharedMemory opened;
  if (fits) {
    try {
      opened.bytes_ = map(file, bytes);
    } catch (...) {
      ::close(file);
      throw;
    }
  }
  ::close(file);
  if (!opened) {
    throw Error(ErrorCode::Unsupported, address.name + " is no shared memory of this group");
  }
  opened.accept(address);
  return opened;
}

std::uint64_t SharedMemory::borrowed_bytes() {
  return 0;
}

void SharedMemory::forget_name() noexcept {
  if (handle_ < 0) return;
  ::shm_unlink(address_.name.c_str());
  ::close(std::exchange(handle_, -1));
}

SharedMemory::~SharedMemory() {
  forget_name();
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Bell::Bell(BellWord& word, const SegmentAddress&) : word_(&word) {}

void Bell::sleep(std::uint32_t seen, std::chrono::microseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (auto nap = kShortest; this->seen() == seen; nap = std::min(nap * 2, kLongest)) {
    if (std::chrono::steady_clock::now() >= end) return;
    std::this_thread::sleep_for(nap);
  }
}

void Bell::ring() {
  word_->fetch_add(1, std::memory_order_release);
}

}  // namespace bimetal::net
