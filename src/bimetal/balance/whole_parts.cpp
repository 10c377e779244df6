#include "bimetal/balance/whole_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

void check_parts(std::int64_t total, std::span<const double> weights) {
  const bool sound = std::ranges::all_of(
      weights, [](double weight) { return std::isfinite(weight) && weight > 0; });
  if (weights.empty() || !sound) {
    throw Error(ErrorCode::InvalidArgument,
                "parts need a weight for each rank, greater than 0 and finite");
  }
  if (total < static_cast<std::int64_t>(weights.size())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} whole pieces are too few for {} ranks", total, weights.size()));
  }
}

/// By proportion, rounded down: never more than the best parts have, but for the one at least.
std::vector<std::int64_t> begun(std::int64_t total, std::span<const double> weights) {
  const auto most = *std::ranges::max_element(weights);  // sums of huge weights overflow
  double sum = 0;
  for (const double weight : weights) sum += weight / most;
  std::vector<std::int64_t> parts;
  for (const double weight : weights) {
    const auto exact = static_cast<double>(total) * (weight / most / sum);
    parts.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(exact)));
  }
  return parts;
}

}  // namespace

std::vector<std::int64_t> whole_parts(std::int64_t total, std::span<const double> weights) {
  check_parts(total, weights);
  auto parts = begun(total, weights);
  const auto finish = [&](std::size_t rank, std::int64_t more) {
    return static_cast<double>(parts[rank] + more) / weights[rank];
  };
  auto left = total - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  // One by one, each to whoever is then through first, or from whoever is through last.
  for (; left > 0; --left) {
    std::size_t first = 0;
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      if (finish(rank, 1) < finish(first, 1)) first = rank;
    }
    ++parts[first];
  }
  for (; left < 0; ++left) {
    std::size_t last = parts.size();
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (parts[rank] == 1) continue;
      if (last == parts.size() || finish(rank, 0) > finish(last, 0)) last = rank;
    }
    --parts[last];
  }
  return parts;
}

}  // namespace bimetal::balance
