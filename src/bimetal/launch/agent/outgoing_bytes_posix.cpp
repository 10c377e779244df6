#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "bimetal/launch/agent/outgoing_bytes.h"

namespace bimetal::launch {

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
