#pragma once
// Figures by which a model is judged, by name, and its output for one sample.

#include <algorithm>
#include <cstdint>
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

/// The data that a model is judged by.
inline constexpr const char* kTestData = "test";
/// Data that are held out of training.
inline constexpr const char* kValidationData = "validation";

/// A model's figures on data that it was not trained on.
struct Evaluation {
  double loss = 0;               ///< mean over the samples, or over their tokens
  Metrics metrics = {};          ///< by name
  std::string data = kTestData;  ///< which
};

/// A model's output for one sample, for people to look at.
struct Sample {
  std::string text = {};  ///< for people: "label 3, taken for 3 (97 %), 8 (2 %)…"
  /// For an image: channels, height and width, and its values 0…255 in that order. Empty if the
  /// sample is no image, or a large one.
  std::vector<std::int64_t> shape = {};
  std::vector<std::uint8_t> pixels = {};  ///< the image's values
  std::vector<std::int64_t> prompt = {};  ///< of a language model
  std::vector<std::int64_t> tokens = {};  ///< its continuation
  std::int64_t vocabulary = 0;            ///< of a language model; 0 for an image
};

}  // namespace bimetal::progress
