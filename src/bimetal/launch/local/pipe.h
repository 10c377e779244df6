#pragma once
// File descriptors with an owner, pipes between a launcher and its ranks, and waiting for several
// of them at once. On Windows the descriptors are those of the C runtime, and only pipes are read
// and waited for.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace bimetal::launch {

/// Closes its descriptor when destroyed. Move-only.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int number() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  void close() noexcept;

 private:
  int number_ = -1;
};

/// Neither end is inherited by child processes unless Process::start hands it on.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;

  /// Error(System) when the process has no descriptors left.
  static Pipe create();
};

/// On Windows nothing: reading never waits there.
void set_nonblocking(const FileDescriptor& descriptor);
void set_close_on_exec(const FileDescriptor& descriptor);

/// Appends to `text` the bytes that can be read without waiting. False at the end of the stream.
bool read_available(const FileDescriptor& descriptor, std::string& text);

/// As read_available, but of about `most` bytes at a time: for a writer that may never pause.
bool read_some(const FileDescriptor& descriptor, std::string& text, std::size_t most);

/// Writes everything; false if the other end is closed.
bool write_all(const FileDescriptor& descriptor, std::string_view text);

/// Made anew for each wait. Use from one thread.
class WaitSet {
 public:
  WaitSet();
  ~WaitSet();
  WaitSet(const WaitSet&) = delete;
  WaitSet& operator=(const WaitSet&) = delete;

  /// Until something can be read there, or the stream has ended.
  void add_readable(int descriptor);
  /// Until something can be written there, or nobody will read it.
  void add_writable(int descriptor);

  /// Returns when one of these is ready, or `most` has passed, or (POSIX) a signal has come.
  /// Reading and writing tell which one it is.
  void wait(std::chrono::milliseconds most);

 private:
  struct Entries;
  std::unique_ptr<Entries> entries_;
};

/// Bytes on their way out through a descriptor, written when it takes them, so that a reader that
/// dawdles never keeps its writer from its other work.
class OutgoingBytes {
 public:
  void push(std::string_view bytes) { bytes_ += bytes; }
  bool empty() const noexcept { return size() == 0; }
  std::size_t size() const noexcept;

  /// Writes what `descriptor` takes without waiting, be it a blocking one or not. False, with the
  /// rest dropped, if nobody will ever read it. Always the same one. (Windows has no such writing:
  /// a thread waits there in this object's place.)
  bool write_some(int descriptor);

 private:
  std::string bytes_;
#ifdef _WIN32
  class Writer;
  std::shared_ptr<Writer> writer_;
#endif
};

}  // namespace bimetal::launch
