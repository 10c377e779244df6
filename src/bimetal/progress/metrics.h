#pragma once
// Figures by which a model is judged, by name.

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::progress {

/// "accuracy" (0…1), "perplexity", …: lower case with underscores, as task::Metric has it.
struct MetricValue {
  std::string name;  ///< "accuracy"
  double value = 0;  ///< mean over the samples' weight
  bool operator==(const MetricValue&) const = default;
};

/// In the task's order.
using Metrics = std::vector<MetricValue>;

/// NaN if it is not among them.
inline double value_of(const Metrics& metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &MetricValue::name);
  return found == metrics.end() ? std::numeric_limits<double>::quiet_NaN() : found->value;
}

/// Whether it is a part of a whole, which people read in percent: "accuracy", "top_5_accuracy".
inline bool is_ratio(std::string_view name) {
  return name == "accuracy" || name.ends_with("_accuracy");
}

/// What a model is judged by.
inline constexpr const char* kTestData = "test";
/// Data that are held out of training.
inline constexpr const char* kValidationData = "validation";

/// What a model says of data that it was not trained on.
struct Evaluation {
  double loss = 0;               ///< mean over the samples, or over their tokens
  Metrics metrics = {};          ///< by name
  std::string data = kTestData;  ///< which
};

}  // namespace bimetal::progress
