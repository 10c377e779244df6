// How far apart two processors are for memory that both use: the time of a word's way there and
// back, and the rate at which one reads what the other has just written. On a virtual machine this
// changes from moment to moment, as its processors are put on cores that share a cache or do not.
// Usage: core_distance. Prints one JSON line.

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTurns = 50'000, kBlocks = 1'000;
constexpr std::size_t kBlockBytes = std::size_t{128} << 10;

alignas(128) std::atomic<int> turn{0};
alignas(4096) unsigned char written[kBlockBytes];
alignas(4096) unsigned char read_to[kBlockBytes];

void tie_to(int number) {
  cpu_set_t allowed, one;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || number-- > 0) continue;
    CPU_SET(cpu, &one);
    break;
  }
  pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

void wait_for(int value) {
  for (long round = 0; turn.load(std::memory_order_acquire) != value; ++round) {
    if (round > 10'000'000) sched_yield();  // the other is not running at all
  }
}

void other_side() {
  tie_to(1);
  for (int i = 0; i < kTurns; ++i) {
    wait_for(1);
    turn.store(0, std::memory_order_release);
  }
  for (int i = 0; i < kBlocks; ++i) {
    wait_for(1);
    std::memset(written, i, kBlockBytes);
    turn.store(0, std::memory_order_release);
  }
}

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

}  // namespace

int main() {
  std::thread other(other_side);
  tie_to(0);
  const auto begun = Clock::now();
  for (int i = 0; i < kTurns; ++i) {
    turn.store(1, std::memory_order_release);
    wait_for(0);
  }
  const double ping = seconds_since(begun) / kTurns;
  double reading = 0;
  for (int i = 0; i < kBlocks; ++i) {
    turn.store(1, std::memory_order_release);
    wait_for(0);
    const auto before = Clock::now();
    std::memcpy(read_to, written, kBlockBytes);
    asm volatile("" : : "r"(read_to) : "memory");  // somebody might use it
    reading += seconds_since(before);
  }
  other.join();
  std::printf("{\"ping_ns\": %.0f, \"transfer_gb_s\": %.1f}\n", ping * 1e9,
              static_cast<double>(kBlocks) * kBlockBytes / reading * 1e-9);
}
