#pragma once
// The contents of a rank's segment of shared memory: how far the rank has come, its call, and its
// slots, through which data reach the other ranks. A rank writes only in its own segment, except
// for the others' bells.
//
// Slots through which the parts of long messages go from one rank to another of its host. The
// sender makes them, for one receiver, and both know by counting which is the next. Frames on the
// connection announce that a part is there, or that its slot is free again (group/message_sender.h,
// mailbox/mailbox_memory.cpp). So nobody waits here, and a lost peer is noticed as always.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/base/wire.h"
#include "bimetal/comm/call.h"
#include "bimetal/comm/parts.h"
#include "bimetal/net/frame.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::comm {

/// More ranks of one host than this use their connections.
inline constexpr int kMaxTeam = 128;
static_assert(kMaxTeam < 0xff);

/// Two processors never write to one line at a time where that can be avoided. Pairs of 64-byte
/// lines are fetched together on some.
inline constexpr std::size_t kLine = 64;

/// A call as its rank made it, for the others to compare with their own. Fields are atomic because
/// a rank that made another call may read them at any time.
struct alignas(kLine) PostedCall {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> kind;         ///< operation, dtype, reduce_op, algorithm, root
  std::atomic<std::uint64_t> compression;  ///< its code and detail
  std::atomic<std::uint64_t> memory;  ///< 1 + offset of the data in the rank's arena; 0: elsewhere
  std::atomic<std::uint64_t> arena;   ///< which arena
  std::atomic<std::uint64_t> epoch;   ///< of membership

  void post(const net::FrameHeader& header);
  /// The call as a header of `group`.
  net::FrameHeader header(std::uint32_t group) const;
};

struct Segment {
  /// Calls that are remembered.
  static constexpr std::size_t kCalls = 8;
  /// How many calls a rank may be ahead of another. The rest of the memory lets the slower rank
  /// look at calls in which it did not wait for the faster.
  static constexpr std::size_t kLead = 4;
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kSlotBytes = std::size_t{256} << 10;

  struct alignas(2 * kLine) Progress {
    std::atomic<std::uint64_t> step;  ///< counts the steps that this rank has made known to
                                      ///< the others
  };
  struct alignas(2 * kLine) Sleep {
    net::BellWord bell;
    std::atomic<std::uint64_t> awaited;  ///< whose step, and which, this rank sleeps for; 0: awake

    static constexpr std::uint64_t awaiting(int rank, std::uint64_t step) {
      return step << 8 | (static_cast<std::uint64_t>(rank) + 1);
    }
    /// Whether that is what `rank` has come to with `step`.
    static constexpr bool is_due(std::uint64_t awaited, int rank, std::uint64_t step) {
      return (awaited & 0xff) == static_cast<std::uint64_t>(rank) + 1 && awaited >> 8 <= step;
    }
  };

  std::byte reserved[net::SharedMemory::kReserved];
  Progress progress;
  Sleep sleep;
  PostedCall calls[kCalls];
  std::atomic<std::uint64_t> pair_counts[kCalls][kMaxTeam];  ///< all_to_all: elements for each rank
  alignas(4096) std::byte slots[kSlots][kSlotBytes];
};

// Where a segment is, as ranks tell each other: 64 bytes (docs/protocol.md, "Finding shared
// memory").

inline constexpr std::size_t kAddressBytes = 64;

void write_address(WireWriter& writer, const net::SegmentAddress& address);

/// Error(CorruptData) for less.
net::SegmentAddress read_address(WireReader& reader);

// Users' memory that all ranks of a team see: one segment of each rank, all of one size.

class Arena {
 public:
  /// Where the users' memory begins in its segment, so that it begins at a page.
  static constexpr std::size_t kOffset = 4096;
  static constexpr std::size_t segment_bytes(std::size_t users) { return kOffset + users; }

  /// `number` is the same on all ranks. `segments[r]` is rank r's.
  Arena(std::uint64_t number, int rank, std::vector<net::SharedMemory> segments)
      : number_(number), rank_(rank), segments_(std::move(segments)) {}

  std::uint64_t number() const noexcept { return number_; }

  /// A rank's memory as this process sees it.
  std::span<std::byte> of(int rank) const { return segments_[rank].bytes().subspan(kOffset); }
  std::span<std::byte> own() const { return of(rank_); }

  /// Whether this rank's `bytes` lie here.
  bool holds(std::span<const std::byte> bytes) const {
    const auto memory = own();
    return bytes.data() >= memory.data() &&
           bytes.data() + bytes.size() <= memory.data() + memory.size();
  }

 private:
  const std::uint64_t number_;
  const int rank_;
  const std::vector<net::SharedMemory> segments_;
};

/// For one thread at a time. Movable.
class MessageRing {
 public:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = kPartBytes;
  /// Shorter messages are no faster through memory than as they are.
  static constexpr std::size_t kLongBytes = std::size_t{64} << 10;

  /// The sender's. Errors: SharedMemory::create's.
  static MessageRing make();
  /// The receiver's. Errors: SharedMemory::open's.
  static MessageRing open(const net::SegmentAddress& address);

  const net::SegmentAddress& address() const noexcept { return memory_.address(); }
  /// Once the receiver has it.
  void forget_name() noexcept { memory_.forget_name(); }

  /// The first `bytes` of the next part's slot.
  std::span<std::byte> next(std::size_t bytes);

 private:
  explicit MessageRing(net::SharedMemory memory) : memory_(std::move(memory)) {}

  net::SharedMemory memory_;
  std::size_t parts_ = 0;  // so far
};

/// Whether a frame announces a part in a slot.
bool is_placed(const net::FrameHeader& header) noexcept;
/// Whether it is about a ring: its `part` says what (call.h).
bool is_ring_word(const net::FrameHeader& header) noexcept;
net::FrameHeader ring_word(std::uint32_t group, std::uint32_t word);

/// Bytes of the whole message that a frame belongs to; 0 for a header that makes no sense.
std::size_t message_bytes(const net::FrameHeader& header) noexcept;
/// The size of part header.part; 0 if the message has no such part.
std::size_t bytes_of_part(const net::FrameHeader& header) noexcept;

}  // namespace bimetal::comm
