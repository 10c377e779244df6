#pragma once
// Seconds as people read them.

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace bimetal::progress {

/// "0:42", "1:02:03"; "?" for what is not known.
inline std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const auto hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest)
                   : fmt::format("{}:{:02}", minutes, rest);
}

}  // namespace bimetal::progress
