#pragma once
// File descriptors with an owner, and pipes between a launcher and its ranks. On Windows
// the descriptors are those of the C runtime, and only pipes are read and waited for.

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

/// Appends to `text` what can be read without waiting. False at the end of the stream.
bool read_available(const FileDescriptor& descriptor, std::string& text);

/// As read_available, but of about `most` bytes at a time: for a writer that may never pause.
bool read_some(const FileDescriptor& descriptor, std::string& text, std::size_t most);

/// Writes everything; false if the other end is closed.
bool write_all(const FileDescriptor& descriptor, std::string_view text);

}  // namespace bimetal::launch
