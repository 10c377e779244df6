#pragma once
// Figures by which a model is judged, for people.

#include <fmt/format.h>

#include <algorithm>
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

}  // namespace bimetal::progress
