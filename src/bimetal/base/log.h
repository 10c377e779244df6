#pragma once
// Log messages leave the library through one sink that the application installs. Without a sink
// nothing is formatted and nothing is printed. Thread-safe; the sink may be called on any thread.

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace bimetal {

enum class LogLevel { trace, debug, info, warning, error };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

/// Installs `sink` for messages of at least `level`; an empty function turns logging off.
void set_log_sink(LogSink sink, LogLevel level = LogLevel::info);

/// Whether a message of this level would reach a sink.
bool log_enabled(LogLevel level) noexcept;

void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace bimetal
