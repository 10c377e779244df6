#pragma once
// A run's history for pictures, of bounded size however long the run is.

#include <cstdint>
#include <vector>

#include "bimetal/progress/report.h"

namespace bimetal::progress {

/// Keeps every point until there are kMost, then every second one, every fourth…
class History {
 public:
  static constexpr std::size_t kMost = 2000;

  void add(HistoryPoint point);
  std::vector<HistoryPoint> take() && { return std::move(points_); }
  const std::vector<HistoryPoint>& points() const noexcept { return points_; }

 private:
  std::vector<HistoryPoint> points_;
  std::int64_t stride_ = 1;
  std::int64_t added_ = 0;
};

}  // namespace bimetal::progress
