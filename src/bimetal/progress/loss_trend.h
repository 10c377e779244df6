#pragma once
// Whether the training loss gets on, by the means of spans of steps.

#include <cstdint>
#include <optional>
#include <string>

#include "bimetal/progress/observer.h"

namespace bimetal::progress {

/// Sees a run's losses step by step and says once, in words, that they rise again, or that they
/// have not begun to fall. Not thread-safe.
class LossTrend {
 public:
  static constexpr int kSpan = 25;      ///< steps whose losses are averaged: batches are not alike
  static constexpr int kPatience = 16;  ///< spans in which a new training must have begun to learn

  /// `fresh`: whether the run begins with untrained parameters; others may have learnt all there
  /// is.
  explicit LossTrend(bool fresh) : fresh_(fresh) {}

  /// The mean loss of a step; one that is not finite is passed over. What is wrong, if that has
  /// just become clear: two spans in a row above the least one by a quarter of it and a tenth of
  /// the first step's loss, or a mean of all spans that is not 3 % below that.
  std::optional<std::string> add(double loss);

 private:
  std::optional<std::string> close_span(double mean);

  bool fresh_, told_ = false;
  std::optional<double> first_;
  double sum_ = 0, least_ = 0, sum_of_means_ = 0;
  std::int64_t counted_ = 0, spans_ = 0, risen_ = 0;
};

/// Tells `observer` of a step and, in a notice, where the loss does not get on, with what may help.
void tell_step(const Progress& progress, LossTrend& trend, Observer& observer);

}  // namespace bimetal::progress
