#pragma once
// Log messages leave the library through one sink that the application installs. Without a sink
// nothing is formatted or printed. Thread-safe; the sink may be called on any thread.
//
// Decides which of many similar events get a line in the log. A stranger who connects again and
// again must not fill a disk, and must not go unnoticed either.

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace bimetal {

enum class LogLevel { trace, debug, info, warning, error };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

/// Installs `sink` for messages of at least `level`; an empty function turns logging off.
void set_log_sink(LogSink sink, LogLevel level = LogLevel::info);

/// The level that BIMETAL_DEBUG asks for, as NCCL_DEBUG does elsewhere: "warning", "info" (who
/// connects to whom and how, what fails), "debug" (failed tries, too), "trace" (every call).
/// Nothing if it is unset, empty or "off". For programs that install the sink: the library itself
/// never reads it. Throws Error(InvalidArgument) for another word.
std::optional<LogLevel> log_level_from_environment();

/// "trace", "info" and so on.
std::string_view to_string(LogLevel level) noexcept;

/// Whether a message of this level would reach a sink.
bool log_enabled(LogLevel level) noexcept;

void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}

// Whether standard output and standard error go to a terminal or to a file.

/// Whether the descriptor is a terminal that understands escape codes, as far as its kind (TERM)
/// tells.
bool is_capable_terminal(int descriptor);

/// Whether a line there may be rewritten in place, and coloured: on a terminal that somebody looks
/// at. Not where NO_COLOR is set, whatever to; and not below mpirun, which gives ranks a
/// pseudo-terminal whose lines it passes on, often into a file.
bool may_rewrite(int descriptor);

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
