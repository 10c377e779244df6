#pragma once
// Decides which of many similar events get a line in the log. A stranger who connects again and
// again must not fill a disk, and must not go unnoticed either.

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace bimetal {

/// For one thread.
class Repetitions {
 public:
  using Clock = std::chrono::steady_clock;

  /// The first `at_once` are told, and later one in each `interval`.
  Repetitions(int at_once, Clock::duration interval) : left_(at_once), interval_(interval) {}

  /// How many before this one were left out since the last that was told; nothing where this one is
  /// to be left out, too.
  std::optional<std::uint64_t> next(Clock::time_point now) {
    if (left_ == 0 && now < due_) {
      ++left_out_;
      return std::nullopt;
    }
    if (left_ > 0) --left_;
    due_ = now + interval_;
    return take_left_out();
  }

  /// Those that nobody has been told of.
  std::uint64_t take_left_out() { return std::exchange(left_out_, 0); }

 private:
  int left_;
  Clock::duration interval_;
  Clock::time_point due_{};
  std::uint64_t left_out_ = 0;
};

}  // namespace bimetal
