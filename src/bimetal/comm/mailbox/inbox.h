#pragma once
// One group's share of the mailbox: its streams of frames, and the state of its members.
//
// The collective calls that this rank has made in one group, as far back as a frame may still
// arrive for them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "bimetal/comm/call.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/net/frame.h"

namespace bimetal::comm {

/// Not thread-safe: the mailbox's lock guards it.
class CallLog {
 public:
  /// Finished calls that are remembered. Ranks never drift further apart than that: they exchange
  /// something in nearly every call.
  static constexpr std::size_t kRemembered = 1024;

  enum class Standing {
    future,     ///< not called here yet
    running,    ///< called and not finished
    finished,   ///< finished and remembered
    forgotten,  ///< finished too long ago to name it
  };

  /// Sequences come without gaps, from 0.
  void open(Call call) { entries_.push_back({std::move(call), false}); }

  void finish(std::uint64_t sequence) {
    entries_[sequence - first_].finished = true;
    while (entries_.size() > kRemembered && entries_.front().finished) {
      entries_.pop_front();
      ++first_;
    }
  }

  Standing standing(std::uint64_t sequence) const {
    if (sequence < first_) return Standing::forgotten;
    if (sequence >= first_ + entries_.size()) return Standing::future;
    return entries_[sequence - first_].finished ? Standing::finished : Standing::running;
  }

  /// For running and finished calls.
  const Call& call(std::uint64_t sequence) const { return entries_[sequence - first_].call; }

 private:
  struct Entry {
    Call call;
    bool finished;
  };

  std::uint64_t first_ = 0;  // sequence of entries_.front()
  std::deque<Entry> entries_;
};

/// Told what befalls a group. Called without any lock held, on the mesh's thread or on the one
/// that entered the mailbox.
class GroupListener {
 public:
  virtual ~GroupListener() = default;

  /// The group cannot go on. `tell_others`: they may not know yet.
  virtual void on_failure(const Failure& failure, bool tell_others) = 0;

  /// World rank `peer` has made collective call `sequence`.
  virtual void on_sign(int peer, std::uint64_t sequence) = 0;

  /// World rank `peer` has said `word` (call.h) of the memory that this rank has offered it.
  virtual void on_ring(int peer, std::uint32_t word) = 0;
};

/// Combines the bytes that are there already with those that have arrived, of the same length.
using Combine = std::function<void(std::span<std::byte> there, std::span<const std::byte> arrived)>;

/// Memory that the frames of one stream fill in their order, from the first byte to the last.
struct PostedReceive {
  std::span<std::byte> into;
  net::FrameHeader expected;   ///< the call that the frames must belong to
  std::function<void()> done;  ///< when filled, or given up after the group has failed
  std::size_t claimed = 0;     ///< bytes that frames have been assigned to
  std::size_t landed = 0;      ///< bytes that have arrived
  bool cancelled = false;      ///< given up while the mesh still writes to it
  Combine combine = {};        ///< takes in what arrives in place of a copy
  std::uint64_t number = 0;    ///< of messages: Inbox::next_number when it was posted

  /// For a receive from any rank: told once whose message it takes, with the mailbox locked.
  std::function<void(int peer)> matched = {};

  bool full() const noexcept { return landed == into.size(); }

  /// Takes in bytes that arrived elsewhere and belong at `offset`; they fit.
  void take(std::size_t offset, std::span<const std::byte> bytes) const {
    const auto there = into.subspan(offset, bytes.size());
    if (combine) {
      combine(there, bytes);
    } else {
      std::ranges::copy(bytes, there.begin());
    }
  }
};

/// A frame that came before its receive.
struct ArrivedFrame {
  net::FrameHeader header;
  std::vector<std::byte> payload;
  std::uint64_t number = 0;  ///< Inbox::next_number when it came
};

/// A fingerprint that came before this rank made the call (see kProbePart).
struct EarlySign {
  int peer;
  net::FrameHeader header;
};

/// Frames that belong together and are matched in their order: those of one collective call from
/// one peer, or the point-to-point messages of one tag from one peer.
struct Stream {
  struct Key {
    bool point_to_point;
    std::uint64_t sequence;  ///< or tag
    int peer;                ///< world rank
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  static Key key_of(int peer, const net::FrameHeader& header) {
    const bool message = header.operation == static_cast<std::uint8_t>(Operation::send_recv);
    return {message, header.sequence, peer};
  }

  std::deque<std::shared_ptr<PostedReceive>> posted;  ///< not yet claimed to their end
  std::deque<ArrivedFrame> arrived;                   ///< only while nothing is posted
};

/// Not thread-safe: the mailbox's lock guards it.
struct Inbox {
  std::weak_ptr<GroupListener> listener;  ///< empty until the group exists on this rank
  std::map<int, int> rank_of;             ///< world rank → rank within the group
  CallLog calls;
  std::map<Stream::Key, Stream> streams;
  /// Receives that take the first message of a tag, from any rank. While there are any, no frame of
  /// that tag waits in a stream.
  std::map<std::uint64_t, std::deque<std::shared_ptr<PostedReceive>>> from_anybody;
  std::uint64_t next_number = 0;
  std::multimap<std::uint64_t, EarlySign> early_signs;  ///< by sequence
  std::map<int, std::shared_ptr<MessageRing>> rings;    ///< by world rank that sends through it
  std::set<int> departed;                ///< world ranks that have left in good order
  std::optional<Failure> early_failure;  ///< came before the group existed on this rank
  bool failed = false;                   ///< frames are thrown away

  /// Whether this rank has joined the group; its frames may come earlier.
  bool exists() const noexcept { return !rank_of.empty(); }

  /// Assigns the next bytes of a stream's first receive, which leaves the queue when none are left.
  void claim(std::map<Stream::Key, Stream>::iterator stream, std::size_t bytes) {
    auto& posted = stream->second.posted;
    posted.front()->claimed += bytes;
    if (posted.front()->claimed == posted.front()->into.size()) posted.pop_front();
    if (posted.empty() && stream->second.arrived.empty()) streams.erase(stream);
  }
};

}  // namespace bimetal::comm
