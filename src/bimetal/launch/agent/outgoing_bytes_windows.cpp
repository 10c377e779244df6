#include <io.h>
#include <windows.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "bimetal/launch/agent/outgoing_bytes.h"

namespace bimetal::launch {

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
