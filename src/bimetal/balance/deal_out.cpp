// Whole samples of unequal weight in the proportions of shares.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "bimetal/balance/check.h"
#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

/// The rank with a share that would be through with `more` first; ties go to the larger share, then
/// to the lower rank.
std::size_t first_through(std::span<const double> loads, std::span<const std::int64_t> shares,
                          double more) {
  const auto finish = [&](std::size_t rank) {
    return (loads[rank] + more) / static_cast<double>(shares[rank]);
  };
  std::size_t best = shares.size();
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank] == 0) continue;
    if (best == shares.size() || finish(rank) < finish(best) ||
        (finish(rank) == finish(best) && shares[rank] > shares[best])) {
      best = rank;
    }
  }
  return best;
}

}  // namespace

std::vector<int> deal_out(std::span<const std::int64_t> weights,
                          std::span<const std::int64_t> shares) {
  if (checked_sum(shares) == 0) {
    throw Error(ErrorCode::InvalidArgument, "samples cannot be dealt out by shares that are all 0");
  }
  for (const std::int64_t weight : weights) check_batch(weight);

  std::vector<std::size_t> heaviest_first(weights.size());
  std::iota(heaviest_first.begin(), heaviest_first.end(), std::size_t{0});
  std::ranges::stable_sort(heaviest_first, std::ranges::greater{},
                           [&](std::size_t item) { return weights[item]; });
  std::vector<int> ranks(weights.size());
  std::vector<double> loads(shares.size(), 0.0);  // whole numbers: exact
  for (const std::size_t item : heaviest_first) {
    const auto weight = static_cast<double>(weights[item]);
    const std::size_t rank = first_through(loads, shares, weight);
    loads[rank] += weight;
    ranks[item] = static_cast<int>(rank);
  }
  return ranks;
}

}  // namespace bimetal::balance
