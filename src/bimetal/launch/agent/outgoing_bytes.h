#pragma once
// Bytes on their way out through a descriptor, written when it takes them, so that a reader that
// dawdles never keeps its writer from its other work (POSIX).

#include <string>
#include <string_view>

namespace bimetal::launch {

class OutgoingBytes {
 public:
  void push(std::string_view bytes) { bytes_ += bytes; }
  bool empty() const noexcept { return bytes_.empty(); }
  std::size_t size() const noexcept { return bytes_.size(); }

  /// Writes what `descriptor` takes without waiting, be it a blocking one or not. False, with the
  /// rest dropped, if nobody will ever read it.
  bool write_some(int descriptor);

 private:
  std::string bytes_;
};

}  // namespace bimetal::launch
