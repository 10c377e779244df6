#pragma once
// Sleeping until another process rings: a word in shared memory that the ringer changes.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace bimetal::net {

using Bell = std::atomic<std::uint32_t>;
static_assert(Bell::is_always_lock_free);

/// Sleeps while `bell` holds `seen`, but no longer than `timeout`. May return early.
void sleep_on(Bell& bell, std::uint32_t seen, std::chrono::microseconds timeout);

/// Changes the bell and wakes whoever sleeps on it, in whichever process.
void ring(Bell& bell);

/// Tells the processor that this thread waits for a word to change.
inline void pause_processor() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace bimetal::net
