#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {
namespace {

/// Descriptors of the launcher stay above the low numbers that its children get them under.
constexpr int kLowest = 10;

FileDescriptor moved_up(const FileDescriptor& low) {
  const int moved = ::fcntl(low.number(), F_DUPFD_CLOEXEC, kLowest);
  // Numbers beyond the limit are no numbers of descriptors at all: EINVAL.
  if (moved < 0) throw system_error("cannot make a pipe", errno == EINVAL ? EMFILE : errno);
  return FileDescriptor(moved);
}

}  // namespace

void FileDescriptor::close() noexcept {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Pipe Pipe::create() {
  std::array<int, 2> ends{};
  // From the beginning: another thread may start a process at any moment, in which the ends would
  // stay open for good.
#ifdef __linux__
  const int failed = ::pipe2(ends.data(), O_CLOEXEC);
#else
  const int failed = ::pipe(ends.data());
#endif
  if (failed != 0) throw system_error("cannot make a pipe", errno);
  const FileDescriptor read_end(ends[0]), write_end(ends[1]);
  return {moved_up(read_end), moved_up(write_end)};
}

void set_nonblocking(const FileDescriptor& descriptor) {
  const int flags = ::fcntl(descriptor.number(), F_GETFL);
  ::fcntl(descriptor.number(), F_SETFL, flags | O_NONBLOCK);
}

void set_close_on_exec(const FileDescriptor& descriptor) {
  ::fcntl(descriptor.number(), F_SETFD, FD_CLOEXEC);
}

bool read_available(const FileDescriptor& descriptor, std::string& text) {
  return read_some(descriptor, text, std::numeric_limits<std::size_t>::max());
}

bool read_some(const FileDescriptor& descriptor, std::string& text, std::size_t most) {
  std::array<char, 4096> chunk{};
  const std::size_t before = text.size();
  while (text.size() - before < most) {
    const auto count = ::read(descriptor.number(), chunk.data(), chunk.size());
    if (count > 0) {
      text.append(chunk.data(), static_cast<std::size_t>(count));
    } else if (count == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

bool write_all(const FileDescriptor& descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(descriptor.number(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

struct WaitSet::Entries {
  std::vector<pollfd> list;
};

WaitSet::WaitSet() : entries_(std::make_unique<Entries>()) {}
WaitSet::~WaitSet() = default;

void WaitSet::add_readable(int descriptor) {
  entries_->list.push_back({descriptor, POLLIN, 0});
}

void WaitSet::add_writable(int descriptor) {
  entries_->list.push_back({descriptor, POLLOUT, 0});
}

void WaitSet::wait(std::chrono::milliseconds most) {
  ::poll(entries_->list.data(), static_cast<nfds_t>(entries_->list.size()),
         static_cast<int>(most.count()));
}

std::size_t OutgoingBytes::size() const noexcept {
  return bytes_.size();
}

bool OutgoingBytes::write_some(int descriptor) {
  // A pipe that poll() calls writable takes so much at once without blocking.
  constexpr std::size_t kAtOnce = PIPE_BUF;
  std::size_t written = 0;
  bool open = true;
  while (open && written < bytes_.size()) {
    pollfd entry{descriptor, POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) break;
    const auto count =
        ::write(descriptor, bytes_.data() + written, std::min(kAtOnce, bytes_.size() - written));
    if (count > 0) {
      written += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      open = false;
    }
  }
  bytes_.erase(0, open ? written : bytes_.size());
  return open;
}

}  // namespace bimetal::launch
