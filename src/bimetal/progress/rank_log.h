#pragma once
// What a rank has to say beside its figures: warnings, notices, what its task prints. It waits here
// until rank 0 takes it, a little at a time, so that whoever watches reads all ranks in one place.

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

/// May be used from any thread. Bounded: whoever says too much loses the oldest, and is told.
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

/// What each rank gives of its log, rank by rank. Collective; errors are those of the group.
std::vector<std::vector<RankLine>> gather_lines(comm::Group group, RankLog& mine,
                                                std::chrono::milliseconds timeout);

}  // namespace bimetal::progress
