#pragma once
// The collective calls that this rank has made in one group, as far back as a frame may still
// arrive for them.

#include <cstddef>
#include <cstdint>
#include <deque>

#include "bimetal/comm/call.h"

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
    forgotten,  ///< finished too long ago to say what it was
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

}  // namespace bimetal::comm
