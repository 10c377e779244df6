#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {
namespace {

/// About what Linux's pipes hold.
constexpr unsigned kPipeHolds = 64 << 10;

HANDLE handle_of(const FileDescriptor& descriptor) {
  return reinterpret_cast<HANDLE>(_get_osfhandle(descriptor.number()));
}

/// Windows wakes nobody for a pipe: how often they are looked at.
constexpr std::chrono::milliseconds kPipesLookedAtEvery{5};

bool has_news(int descriptor) {
  DWORD available = 0;
  const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(descriptor));
  return !PeekNamedPipe(handle, nullptr, 0, nullptr, &available, nullptr) || available > 0;
}

}  // namespace

void FileDescriptor::close() noexcept {
  if (number_ >= 0) _close(std::exchange(number_, -1));
}

Pipe Pipe::create() {
  std::array<int, 2> ends{};
  if (_pipe(ends.data(), kPipeHolds, _O_BINARY | _O_NOINHERIT) != 0) {
    throw system_error("cannot make a pipe", errno);
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void set_nonblocking(const FileDescriptor&) {}

void set_close_on_exec(const FileDescriptor& descriptor) {
  SetHandleInformation(handle_of(descriptor), HANDLE_FLAG_INHERIT, 0);
}

bool read_available(const FileDescriptor& descriptor, std::string& text) {
  return read_some(descriptor, text, std::numeric_limits<std::size_t>::max());
}

bool read_some(const FileDescriptor& descriptor, std::string& text, std::size_t most) {
  std::array<char, 4096> chunk;
  const std::size_t before = text.size();
  while (text.size() - before < most) {
    DWORD count = 0;
    if (!PeekNamedPipe(handle_of(descriptor), nullptr, 0, nullptr, &count, nullptr)) return false;
    if (count == 0) return true;
    count = std::min<DWORD>(count, chunk.size());
    if (!ReadFile(handle_of(descriptor), chunk.data(), count, &count, nullptr)) return false;
    text.append(chunk.data(), count);
  }
  return true;
}

bool write_all(const FileDescriptor& descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto size = static_cast<DWORD>(std::min<std::size_t>(text.size(), kPipeHolds));
    DWORD count = 0;
    if (!WriteFile(handle_of(descriptor), text.data(), size, &count, nullptr)) return false;
    text.remove_prefix(count);
  }
  return true;
}

struct WaitSet::Entries {
  std::vector<int> readable;
  bool any_writable = false;
};

WaitSet::WaitSet() : entries_(std::make_unique<Entries>()) {}
WaitSet::~WaitSet() = default;

void WaitSet::add_readable(int descriptor) {
  entries_->readable.push_back(descriptor);
}

void WaitSet::add_writable(int) {
  entries_->any_writable = true;
}

void WaitSet::wait(std::chrono::milliseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  while (std::ranges::none_of(entries_->readable, has_news)) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return;
    Sleep(static_cast<DWORD>(kPipesLookedAtEvery.count()));
    // Whether a pipe takes more, its writer finds out (OutgoingBytes).
    if (entries_->any_writable) return;
  }
}

/// A thread that may wait for the reader, and who hands it bytes one load at a time.
class OutgoingBytes::Writer {
 public:
  explicit Writer(int descriptor)
      : state_(std::make_shared<State>()),
        thread_(run, state_, reinterpret_cast<HANDLE>(_get_osfhandle(descriptor))) {}

  ~Writer() {
    {
      std::lock_guard lock(state_->mutex);
      state_->ending = true;
    }
    state_->changed.notify_one();
    CancelSynchronousIo(thread_.native_handle());
    thread_.detach();  // it may still be in a write that cannot be cancelled
  }

  std::size_t size() const {
    std::lock_guard lock(state_->mutex);
    return state_->load.size();
  }

  /// Takes all of the bytes if it is idle. False if its last load found no reader.
  bool offer(std::string& bytes) {
    {
      std::lock_guard lock(state_->mutex);
      if (state_->no_reader) return false;
      if (!state_->load.empty()) return true;
      std::swap(state_->load, bytes);
    }
    state_->changed.notify_one();
    return true;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::string load;
    bool no_reader = false, ending = false;
  };

  static void run(std::shared_ptr<State> state, HANDLE to) {
    std::unique_lock lock(state->mutex);
    while (true) {
      state->changed.wait(lock, [&] { return state->ending || !state->load.empty(); });
      if (state->ending) return;
      const std::string& load = state->load;  // nobody else touches it before it is empty
      lock.unlock();
      const bool read = write(to, load);
      lock.lock();
      state->load.clear();
      state->no_reader = !read;
      if (!read) return;
    }
  }

  static bool write(HANDLE to, std::string_view bytes) {
    while (!bytes.empty()) {
      DWORD count = 0;
      if (!WriteFile(to, bytes.data(), static_cast<DWORD>(bytes.size()), &count, nullptr)) {
        return false;
      }
      bytes.remove_prefix(count);
    }
    return true;
  }

  std::shared_ptr<State> state_;
  std::thread thread_;
};

std::size_t OutgoingBytes::size() const noexcept {
  return bytes_.size() + (writer_ ? writer_->size() : 0);
}

bool OutgoingBytes::write_some(int descriptor) {
  if (bytes_.empty() && !writer_) return true;
  if (!writer_) writer_ = std::make_shared<Writer>(descriptor);
  const bool open = writer_->offer(bytes_);
  if (!open) bytes_.clear();
  return open;
}

}  // namespace bimetal::launch
