#pragma once
// Bytes on their way out through a descriptor, written when it takes them, so that a reader that
// dawdles never keeps its writer from its other work.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace bimetal::launch {

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
