// By futex, which works between processes because it is not told to be private.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "bimetal/net/shm/bell.h"

namespace bimetal::net {

Bell::Bell(BellWord& word, const SegmentAddress&) : word_(&word) {}

void Bell::sleep(std::uint32_t seen, std::chrono::microseconds timeout) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000);
  time.tv_nsec = static_cast<long>(timeout.count() % 1'000'000) * 1000;
  ::syscall(SYS_futex, word_, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void Bell::ring() {
  word_->fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace bimetal::net
