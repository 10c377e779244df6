// Where processes cannot wake each other through a word of memory by a call that all supported
// versions of the system have: the sleeper looks again at growing intervals.
#include <algorithm>
#include <thread>

#include "bimetal/net/shm/bell.h"

namespace bimetal::net {
namespace {

constexpr std::chrono::microseconds kShortest{50}, kLongest{1000};

}  // namespace

Bell::Bell(BellWord& word, const SegmentAddress&) : word_(&word) {}

void Bell::sleep(std::uint32_t seen, std::chrono::microseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (auto nap = kShortest; this->seen() == seen; nap = std::min(nap * 2, kLongest)) {
    if (std::chrono::steady_clock::now() >= end) return;
    std::this_thread::sleep_for(nap);
  }
}

void Bell::ring() {
  word_->fetch_add(1, std::memory_order_release);
}

}  // namespace bimetal::net
