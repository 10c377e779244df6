#pragma once
// A series of points of bounded size, however long it gets.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace bimetal::progress {

/// Keeps every point until there are kMostPoints, then every second one, every fourth…
template <typename Point, std::size_t kMostPoints = 2000>
class Thinned {
 public:
  static constexpr std::size_t kMost = kMostPoints;

  void add(Point point) {
    if (added_++ % stride_ != 0) return;
    if (points_.size() == kMost) {
      for (std::size_t i = 0; i < kMost / 2; ++i) points_[i] = std::move(points_[2 * i]);
      points_.resize(kMost / 2);
      stride_ *= 2;
    }
    points_.push_back(std::move(point));
  }

  std::vector<Point> take() && { return std::move(points_); }
  const std::vector<Point>& points() const noexcept { return points_; }

 private:
  std::vector<Point> points_;
  std::int64_t stride_ = 1;
  std::int64_t added_ = 0;
};

}  // namespace bimetal::progress
