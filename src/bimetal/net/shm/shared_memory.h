#pragma once
// Memory that several processes of one host share. Its maker tells the others where it is. A
// process shares memory with the maker if it reads the maker's nonce in the memory that it has
// opened. Host names and addresses prove nothing.
//
// Sleeping until another process rings: a word in shared memory that the ringer changes, and each
// system's means to wake a sleeper of another process.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace bimetal::net {

/// How another process finds a segment. Travels in messages of the group.
struct SegmentAddress {
  static constexpr std::size_t kNonceBytes = 16;

  std::uint64_t process = 0;  ///< of the maker; 0 on Windows
  std::uint64_t handle = 0;   ///< the maker's descriptor (Linux)
  std::string name;           ///< where there are names only; at most 32 characters
  std::array<std::byte, kNonceBytes> nonce{};
};

/// One mapping of a segment, unmapped in the end; the memory goes with its last mapping. On Linux a
/// segment never has a name, and Windows forgets it with its maker, so nothing is left behind by a
/// process killed at whatever moment; elsewhere it has one until forget_name(). Movable; not
/// thread-safe itself.
class SharedMemory {
 public:
  /// The maker's nonce lies here at the beginning; the rest is the users'.
  static constexpr std::size_t kReserved = 64;

  /// Zeroed memory. On Linux and Windows it is set aside at once, so that a host without any fails
  /// here and not at some later access (SIGBUS). Errors: Unsupported, System.
  static SharedMemory create(std::size_t bytes);

  /// The segment of another process (or of this one, mapped once more). Errors: Unsupported where
  /// it is out of reach: another host or container, another user, another size, or the nonce of
  /// somebody else.
  static SharedMemory open(const SegmentAddress& address, std::size_t bytes);

  /// The part of this process's resident memory in segments that other processes have made: the
  /// pages that it has touched. The system charges their makers for it (a cgroup's limit counts
  /// memory where it was set aside). Reads /proc/self/smaps; 0 where that cannot be had.
  static std::uint64_t borrowed_bytes();

  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  /// How others find a segment made by create(), and how an opened one was found.
  const SegmentAddress& address() const noexcept { return address_; }

  /// Makes the segment impossible to find for newcomers and leaves its users alone. For the maker,
  /// once everybody has opened it.
  void forget_name() noexcept;

  /// All of it, kReserved included. Begins at a page.
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return !bytes_.empty(); }

 private:
  void swap(SharedMemory& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(handle_, other.handle_);
    std::swap(address_, other.address_);
  }
  void write_nonce();
  /// Accepts the segment that has been opened, if it has the nonce. Error(Unsupported) otherwise.
  void accept(const SegmentAddress& address);

  std::span<std::byte> bytes_;
  int handle_ = -1;  ///< of the maker, until forget_name()
  SegmentAddress address_;
};

using BellWord = std::atomic<std::uint32_t>;
static_assert(BellWord::is_always_lock_free);

/// One process's hold of the bell of a segment, which has one: each that sleeps on it or rings it
/// has its own. One sleeper at a time, any number that ring. Movable.
class Bell {
 public:
  /// `word` lies in the segment at `address`, and outlives this. Never fails: where the system
  /// gives no means to be woken, a sleeper looks again now and then.
  Bell(BellWord& word, const SegmentAddress& address);

  /// The word's present value. Read it before checking for a reason to sleep.
  std::uint32_t seen() const noexcept { return word_->load(std::memory_order_acquire); }

  /// Sleeps while the word holds `seen`, but no longer than `timeout`. May return early.
  void sleep(std::uint32_t seen, std::chrono::microseconds timeout);

  /// Changes the word and wakes the sleeper, in any process.
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
