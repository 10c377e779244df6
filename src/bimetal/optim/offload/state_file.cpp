#include "bimetal/optim/offload/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <torch/csrc/api/include/torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"

namespace bimetal::optim {
namespace {

/// As large as what states are read and written in (disk_moments.h).
constexpr std::uint64_t kBlock = 4u << 20;

/// Nothing that a disk could store as less.
std::vector<std::byte> noise(std::uint64_t bytes) {
  std::mt19937 draw;
  std::vector<std::byte> block(bytes);
  std::ranges::generate(block, [&] { return static_cast<std::byte>(draw() & 0xff); });
  return block;
}

Transferred write_noise(const StateFile& file, double patience) {
  const auto block = noise(std::min(kBlock, file.bytes()));
  Transferred written;
  // Ever more between two waits for the disk, which cost something by themselves.
  std::uint64_t blocks = 2;
  while (written.bytes < file.bytes() && written.seconds < patience) {
    const Stopwatch watch;
    for (std::uint64_t i = 0; i < blocks && written.bytes < file.bytes(); ++i) {
      const auto count = std::min(kBlock, file.bytes() - written.bytes);
      file.write(std::span(block).first(count), written.bytes);
      written.bytes += count;
    }
    file.sync();
    written.seconds += watch.seconds();
    blocks *= 2;
  }
  return written;
}

}  // namespace

void TransferMeter::begin() {
  const std::lock_guard lock(mutex_);
  if (running_++ == 0) since_ = Clock::now();
}

void TransferMeter::end(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  total_.bytes += bytes;
  if (--running_ > 0) return;
  total_.seconds += std::chrono::duration<double>(Clock::now() - since_).count();
}

Transferred TransferMeter::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

namespace {

/// Holds on any system.
constexpr std::uint64_t kLeastPage = 4096;

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

Error no_room(const std::filesystem::path& folder, std::uint64_t bytes, const std::string& why) {
  return {ErrorCode::System,
          fmt::format("no room for {} in {} (zero.offload_path): {}. Make "
                      "room, take a folder on another disk, a smaller shard for this rank "
                      "(zero.shards), or \"host\" in the place of \"disk\"",
                      mebibytes(bytes), folder.string(), why)};
}

/// Before the system would end the process with SIGXFSZ.
void require_allowed(const std::filesystem::path& folder, std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (limit.rlim_cur >= bytes) return;
  throw no_room(folder, bytes,
                fmt::format("files may have {} (ulimit -f)", mebibytes(limit.rlim_cur)));
}

}  // namespace

StateFile::StateFile(const std::filesystem::path& folder, std::uint64_t bytes)
    : folder_(folder), bytes_(bytes) {
  std::error_code unknown;
  if (!std::filesystem::is_directory(folder, unknown)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("zero.offload_path = \"{}\" is no folder: give one on a fast disk, on "
                            "the machine of every rank that offloads to it",
                            folder.string()));
  }
  require_allowed(folder, bytes);
  open_without_name();
  try {
    reserve();
    if (bytes_ == 0) return;
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED) throw system_error("cannot map a file in " + folder.string(), errno);
    mapped_ = static_cast<std::byte*>(memory);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

StateFile::~StateFile() {
  if (mapped_ != nullptr) munmap(mapped_, bytes_);
  close(descriptor_);
}

void StateFile::open_without_name() {
#ifdef O_TMPFILE
  descriptor_ = open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor_ >= 0) return;
#endif
  // File systems without nameless files have a name for a moment.
  auto name = (folder_ / ".bimetal-state-XXXXXX").string();
  descriptor_ = mkstemp(name.data());
  if (descriptor_ < 0) throw system_error("cannot make a file in " + folder_.string(), errno);
  unlink(name.c_str());
  fcntl(descriptor_, F_SETFD, FD_CLOEXEC);
}

void StateFile::reserve() const {
#ifdef __linux__
  const int failed = bytes_ == 0 ? 0 : posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes_));
  if (failed != 0) throw no_room(folder_, bytes_, std::generic_category().message(failed));
#else
  const std::vector<std::byte> zeros(1u << 20);
  for (std::uint64_t offset = 0; offset < bytes_; offset += zeros.size()) {
    const auto left = std::min<std::uint64_t>(zeros.size(), bytes_ - offset);
    write(std::span(zeros).first(static_cast<std::size_t>(left)), offset);
  }
#endif
}

void StateFile::read(std::span<std::byte> to, std::uint64_t offset) const {
  while (!to.empty()) {
    const auto got = pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("cannot read the state kept in " + folder_.string(), errno);
    if (got == 0) throw system_error("cannot read the state kept in " + folder_.string(), EIO);
    to = to.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void StateFile::write(std::span<const std::byte> from, std::uint64_t offset) const {
  while (!from.empty()) {
    const auto put = pwrite(descriptor_, from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
      throw no_room(folder_, bytes_, std::generic_category().message(errno));
    }
    if (put < 0) throw system_error("cannot write the state kept in " + folder_.string(), errno);
    from = from.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void StateFile::let_go_of_mapped(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  if (bytes > 0) madvise(mapped_ + offset, bytes, MADV_DONTNEED);
}

void StateFile::bring_mapped(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  if (bytes == 0) return;
  auto* const from = mapped_ + offset;
  brought_.during(bytes, [&] {
    madvise(from, bytes, MADV_WILLNEED);  // all of it at once, and no more than asked for
#ifdef MADV_POPULATE_READ
    if (madvise(from, bytes, MADV_POPULATE_READ) == 0) return;
#endif
    // Older systems: a look at each page waits for it.
    const volatile std::byte* const pages = from;
    for (std::uint64_t at = 0; at < bytes; at += kLeastPage) static_cast<void>(pages[at]);
  });
}

void StateFile::sync() const {
#ifdef __linux__
  const int failed = fdatasync(descriptor_);
#else
  const int failed = fsync(descriptor_);
#endif
  if (failed != 0) throw system_error("cannot write to a file in " + folder_.string(), errno);
}

void StateFile::forget_cached() const noexcept {
#ifdef POSIX_FADV_DONTNEED
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
#endif
}

FileTensor::FileTensor(std::shared_ptr<StateFile> file, std::uint64_t offset, std::int64_t count,
                       torch::ScalarType dtype)
    : file_(std::move(file)),
      offset_(offset),
      tensor_(torch::from_blob(
          file_->mapped() + offset, {count}, [file = file_](void*) {}, torch::dtype(dtype))) {}

void FileTensor::bring() noexcept {
  if (!file_ || tensor_.numel() == 0 || coming_.valid()) return;
  try {
    coming_ =
        std::async(std::launch::async, [file = file_, offset = offset_, bytes = tensor_.nbytes()] {
          file->bring_mapped(offset, bytes);
        });
  } catch (const std::exception&) {
    // No thread to be had: it is read when it is due.
  }
}

void FileTensor::arrive() noexcept {
  if (!file_) return;
  if (coming_.valid()) return std::exchange(coming_, {}).wait();
  file_->bring_mapped(offset_, tensor_.nbytes());
}

void FileTensor::let_go() const noexcept {
  if (file_) file_->let_go_of_mapped(offset_, tensor_.nbytes());
}

PlainCopy copy_plainly(const std::filesystem::path& folder, std::uint64_t most,
                       std::chrono::milliseconds patience) {
  const double limit = std::chrono::duration<double>(patience).count();
  PlainCopy copy;
  try {
    const StateFile file(folder, most);
    copy.written = write_noise(file, limit);
    file.forget_cached();
    std::vector<std::byte> block(std::min(kBlock, most));
    const Stopwatch watch;
    while (copy.read.bytes < copy.written.bytes && watch.seconds() < limit) {
      const auto count = std::min(kBlock, copy.written.bytes - copy.read.bytes);
      file.read(std::span(block).first(count), copy.read.bytes);
      copy.read.bytes += count;
    }
    copy.read.seconds = watch.seconds();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::System) throw;
    return {};
  }
  return copy;
}

}  // namespace bimetal::optim
