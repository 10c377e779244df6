#pragma once
// A rank's log beside its figures: warnings, notices, and its task's output. Lines wait here until
// rank 0 takes them, a few at a time, so that users read all ranks in one place.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"

namespace bimetal::progress {

struct RankLine {
  double at = 0;          ///< Unix time, by the rank's clock, in seconds
  std::string kind = {};  ///< notice, warning, error, info, debug, output
  std::string text = {};
};

template <typename Wire>
void fields(Wire& wire, RankLine& line) {
  wire(line.at, line.kind, line.text);
}

/// May be used from any thread. Bounded: a rank that says too much loses its oldest lines, and is
/// told.
class RankLog {
 public:
  static constexpr std::size_t kMostWaiting = 16 << 10;      ///< bytes
  static constexpr std::size_t kMostAtOnce = 4 << 10;        ///< bytes that take() gives
  static constexpr std::size_t kMostOfLine = 500;            ///< bytes; "…" stands for the rest
  static constexpr std::chrono::milliseconds kBetween{500};  ///< that others are asked to listen

  void say(std::string_view kind, std::string_view text);

  /// Whether something waits that the others should hear of now.
  bool due() const;

  /// The oldest, in their order.
  std::vector<RankLine> take();

 private:
  mutable std::mutex mutex_;
  std::deque<RankLine> lines_;
  std::size_t bytes_ = 0;
  std::int64_t dropped_ = 0;
  Deadline next_ = Deadline::after(std::chrono::milliseconds(0));
};

/// Each rank's new log lines, in order of ranks. Collective; errors are those of the group.
std::vector<std::vector<RankLine>> gather_lines(comm::Group group, RankLog& mine,
                                                std::chrono::milliseconds timeout);

}  // namespace bimetal::progress
