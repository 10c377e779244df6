#include "bimetal/progress/history.h"

#include <utility>

namespace bimetal::progress {

void History::add(HistoryPoint point) {
  if (added_++ % stride_ != 0) return;
  if (points_.size() == kMost) {
    for (std::size_t i = 0; i < kMost / 2; ++i) points_[i] = std::move(points_[2 * i]);
    points_.resize(kMost / 2);
    stride_ *= 2;
  }
  points_.push_back(std::move(point));
}

}  // namespace bimetal::progress
