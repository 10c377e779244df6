#include "bimetal/parallel/server/ledger/gradient_age.h"

#include <algorithm>

namespace bimetal::parallel::server {
namespace {

// Gradients older than that are not followed any further.
constexpr std::size_t kVersionsKept = 4096;

}  // namespace

void GradientAge::observe(int worker, std::uint64_t used) {
  const auto then = steps_.find(used);
  if (then == steps_.end()) return;
  Ages& ages = ages_[worker];
  ages.newest[ages.count++ % ages.newest.size()] = steps_.rbegin()->second - then->second;
}

void GradientAge::add_update(double part) {
  const double before = steps_.rbegin()->second;
  steps_[++version_] = before + part;
  if (steps_.size() > kVersionsKept) steps_.erase(steps_.begin());
}

/// The median: a pause of one worker says little about its next lease.
double GradientAge::expected(int worker) const {
  const auto found = ages_.find(worker);
  if (found == ages_.end()) return 0;
  auto sorted = found->second.newest;
  const auto end =
      sorted.begin() + static_cast<std::ptrdiff_t>(std::min(found->second.count, sorted.size()));
  const auto middle = sorted.begin() + (end - sorted.begin() - 1) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return std::min(*middle, kFurthestAhead);
}

}  // namespace bimetal::parallel::server
