#pragma once
// Figures and times as people read them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "bimetal/progress/metrics.h"

namespace bimetal::progress {

/// "test accuracy" and "87.00 %", "test perplexity" and "12.3456".
inline std::string label_of(const MetricValue& metric, std::string_view data = kTestData) {
  auto label = fmt::format("{} {}", data, metric.name);
  std::ranges::replace(label, '_', ' ');
  return label;
}
inline std::string text_of(const MetricValue& metric) {
  return is_ratio(metric.name) ? fmt::format("{:.2f} %", 100 * metric.value)
                               : fmt::format("{:.4f}", metric.value);
}

/// "0:42", "1:02:03"; "?" for an unknown time.
inline std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const auto hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest)
                   : fmt::format("{}:{:02}", minutes, rest);
}

}  // namespace bimetal::progress
