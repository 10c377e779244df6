#pragma once
// Waiting for several pipes at once.

#include <chrono>
#include <memory>

namespace bimetal::launch {

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

  /// Returns when one of these is so, or `most` has passed, or (POSIX) a signal has come; who is
  /// meant, reading and writing tell.
  void wait(std::chrono::milliseconds most);

 private:
  struct Entries;
  std::unique_ptr<Entries> entries_;
};

}  // namespace bimetal::launch
