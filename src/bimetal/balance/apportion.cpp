// Shares in given proportions: equal, weighted, scaled.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bimetal/balance/checks.h"
#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

/// Hands `left` single samples to the ranks in order of their remainder; ties go to lower ranks.
/// Ranks with a remainder of 0 have their exact part already and come last.
template <typename Remainder>
void give_largest_remainders(Shares& shares, const std::vector<Remainder>& remainders,
                             std::int64_t left) {
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::int64_t i = 0; i < left; ++i) ++shares[order[static_cast<std::size_t>(i)]];
}

}  // namespace

Shares equal_shares(int ranks, std::int64_t global_batch) {
  check_ranks(ranks);
  check_batch(global_batch);
  Shares shares(static_cast<std::size_t>(ranks), global_batch / ranks);
  for (std::int64_t rank = 0; rank < global_batch % ranks; ++rank) {
    ++shares[static_cast<std::size_t>(rank)];
  }
  return shares;
}

Shares weighted_shares(std::span<const double> weights, std::int64_t global_batch) {
  check_ranks(static_cast<std::int64_t>(weights.size()));
  check_batch(global_batch);
  const bool valid = std::all_of(weights.begin(), weights.end(),
                                 [](double w) { return std::isfinite(w) && w >= 0.0; });
  // Division by the largest keeps the sum finite.
  const double largest = *std::max_element(weights.begin(), weights.end());
  if (!valid || largest <= 0.0) {
    throw Error(ErrorCode::InvalidArgument,
                "shares need weights that are finite, not negative and not all 0");
  }
  double sum = 0.0;
  for (const double weight : weights) sum += weight / largest;

  Shares shares;
  std::vector<double> remainders;
  std::int64_t left = global_batch;
  for (const double weight : weights) {
    const double part = static_cast<double>(global_batch) * (weight / largest / sum);
    shares.push_back(std::min(static_cast<std::int64_t>(part), left));
    remainders.push_back(part - static_cast<double>(shares.back()));
    left -= shares.back();
  }
  give_largest_remainders(shares, remainders, left);
  return shares;
}

Shares scale_shares(std::span<const std::int64_t> shares, std::int64_t batch) {
  check_batch(batch);
  const std::int64_t total = checked_sum(shares);
  if (batch == 0) return Shares(shares.size(), 0);
  if (total == 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a batch of {} cannot be split in shares that are all 0", batch));
  }
  Shares scaled;
  std::vector<std::int64_t> remainders;
  std::int64_t left = batch;
  for (const std::int64_t share : shares) {
    scaled.push_back(share * batch / total);
    remainders.push_back(share * batch % total);
    left -= scaled.back();
  }
  give_largest_remainders(scaled, remainders, left);
  return scaled;
}

}  // namespace bimetal::balance
