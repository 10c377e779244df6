#pragma once
// Sleeping until another process rings: a word in shared memory that the ringer changes, and what
// each system needs to wake a sleeper of another process.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::net {

using BellWord = std::atomic<std::uint32_t>;
static_assert(BellWord::is_always_lock_free);

/// One process's hold of the bell of a segment, which has one: each that sleeps on it or rings it
/// has its own. One sleeper at a time, any number that ring. Movable.
class Bell {
 public:
  /// `word` lies in the segment at `address`, and outlives this. Never fails: where the system
  /// gives no means to be woken, a sleeper looks again now and then.
  Bell(BellWord& word, const SegmentAddress& address);

  /// What the word holds now. To be asked before looking whether there is a reason to sleep.
  std::uint32_t seen() const noexcept { return word_->load(std::memory_order_acquire); }

  /// Sleeps while the word holds `seen`, but no longer than `timeout`. May return early.
  void sleep(std::uint32_t seen, std::chrono::microseconds timeout);

  /// Changes the word and wakes the sleeper, in whichever process.
  void ring();

 private:
  BellWord* word_;
  std::shared_ptr<void> event_;  ///< on Windows; none elsewhere
};

/// Tells the processor that this thread waits for a word to change.
inline void pause_processor() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace bimetal::net
