#include "bimetal/parallel/server/shard_weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

double checked(double rate) {
  if (rate > 0 && std::isfinite(rate)) return rate;
  throw Error(ErrorCode::InvalidArgument, "a measured rate must be above 0 and finite");
}

/// Two digits: what the processes of a job compare, and people read.
double rounded(double weight) {
  return std::max(std::round(weight * 100) / 100, kLeastWeight);
}

}  // namespace

std::vector<double> weights_of(std::span<const std::vector<LinkRate>> rates) {
  if (rates.empty() || rates.front().empty()) {
    throw Error(ErrorCode::InvalidArgument, "weights need rates of a worker and a server at least");
  }
  std::vector<double> seconds(rates.front().size(), 0);  // per byte up and down, over all workers
  for (const auto& row : rates) {
    if (row.size() != seconds.size()) {
      throw Error(ErrorCode::InvalidArgument, "every worker must have measured every server");
    }
    for (std::size_t k = 0; k < row.size(); ++k) {
      seconds[k] += 1 / checked(row[k].up) + 1 / checked(row[k].down);
    }
  }
  std::vector<std::size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t k) { return seconds[k]; });
  const double fastest = seconds[order.front()];
  std::vector<double> weights(seconds.size());
  double first = fastest;  // of those that count as equal
  for (const auto k : order) {
    if (seconds[k] > first * kAlike) first = seconds[k];
    weights[k] = rounded(fastest / first);
  }
  return weights;
}

}  // namespace bimetal::parallel::server
