// Shares in given proportions: equal, weighted, scaled.
//
// Water-filling in integers: docs/balance.md proves that the result is the optimum.

#include "bimetal/balance/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "bimetal/balance/checks.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"

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

/// A device's cost with every unknown resolved.
struct Cost {
  double alpha = 0.0;
  double beta = 1.0;
  std::int64_t cap = 0;

  double seconds(std::int64_t batch) const { return alpha + beta * static_cast<double>(batch); }

  /// The most samples that end by `finish`.
  std::int64_t samples_by(double finish) const {
    if (cap == 0 || seconds(1) > finish) return 0;
    if (seconds(cap) <= finish) return cap;
    // Rounding may put the quotient one off; what counts is seconds() as it is computed.
    auto samples =
        std::clamp<std::int64_t>(static_cast<std::int64_t>((finish - alpha) / beta), 1, cap - 1);
    while (samples > 1 && seconds(samples) > finish) --samples;
    while (samples + 1 < cap && seconds(samples + 1) <= finish) ++samples;
    return samples;
  }
};

/// The cost assumed for an unprobed device: the mean of the known ones.
Cost typical_cost(std::span<const Device> devices) {
  Cost sum{0.0, 0.0, 0};
  int known = 0;
  for (const Device& device : devices) {
    if (!device.cost.known()) continue;
    sum.alpha += device.cost.alpha();
    sum.beta += device.cost.beta();
    ++known;
  }
  return known == 0 ? Cost{} : Cost{sum.alpha / known, sum.beta / known, 0};
}

std::vector<Cost> resolve(std::span<const Device> devices, std::int64_t batch) {
  const Cost typical = typical_cost(devices);
  std::vector<Cost> costs;
  for (const Device& device : devices) {
    Cost cost = device.cost.known() ? Cost{device.cost.alpha(), device.cost.beta(), 0} : typical;
    cost.cap = std::clamp<std::int64_t>(device.cap, 0, batch);
    costs.push_back(cost);
  }
  return costs;
}

void check_room(const std::vector<Cost>& costs, std::int64_t batch) {
  std::int64_t room = 0;
  for (const Cost& cost : costs) room += cost.cap;
  if (room < batch) {
    throw Error(
        ErrorCode::OutOfMemory,
        fmt::format(
            "a global batch of {} does not fit: the memory of {} holds {}; use a smaller "
            "global_batch or micro_batch",
            batch,
            costs.size() == 1 ? "the worker" : fmt::format("all {} workers together", costs.size()),
            counted(room, "sample")));
  }
}

std::int64_t total_by(const std::vector<Cost>& costs, double finish) {
  std::int64_t total = 0;
  for (const Cost& cost : costs) total += cost.samples_by(finish);
  return total;
}

/// A finish by which at most `batch` samples are done, and nearly so: bisection to the point where
/// fewer than one sample a device is missing, or to neighbouring doubles.
double finish_from_below(const std::vector<Cost>& costs, std::int64_t batch) {
  double high = 0.0;
  for (const Cost& cost : costs) high = std::max(high, cost.seconds(cost.cap));
  if (total_by(costs, high) <= batch) return high;
  double low = -1.0;  // before any device can have finished anything
  const auto few = static_cast<std::int64_t>(costs.size());
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return low;
    const std::int64_t total = total_by(costs, middle);
    (total <= batch ? low : high) = middle;
    if (total <= batch && batch - total <= few) return low;
  }
}

/// The device that would end first with one more sample (and more, while that costs it nothing).
std::size_t next_device(const std::vector<Cost>& costs, const Shares& shares) {
  std::size_t best = costs.size();
  double soonest = std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < costs.size(); ++r) {
    if (shares[r] == costs[r].cap) continue;
    const double finish = costs[r].seconds(shares[r] + 1);
    if (best == costs.size() || finish < soonest) {
      best = r;
      soonest = finish;
    }
  }
  return best;
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

Shares balanced_shares(std::span<const Device> devices, std::int64_t global_batch) {
  check_ranks(static_cast<std::int64_t>(devices.size()));
  check_batch(global_batch);
  const std::vector<Cost> costs = resolve(devices, global_batch);
  check_room(costs, global_batch);

  const double finish = finish_from_below(costs, global_batch);
  Shares shares;
  std::int64_t left = global_batch;
  for (const Cost& cost : costs) {
    shares.push_back(cost.samples_by(finish));
    left -= shares.back();
  }
  while (left > 0) {
    const std::size_t r = next_device(costs, shares);
    // Everything that ends at the same moment as the next sample comes with it.
    const std::int64_t by_then = costs[r].samples_by(costs[r].seconds(shares[r] + 1));
    const std::int64_t taken = std::clamp<std::int64_t>(by_then - shares[r], 1, left);
    shares[r] += taken;
    left -= taken;
  }
  return shares;
}

double finish_seconds(std::span<const Device> devices, std::span<const std::int64_t> shares) {
  check_same_ranks(devices.size(), shares.size());
  const std::vector<Cost> costs = resolve(devices, checked_sum(shares));
  double finish = 0.0;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (shares[r] > 0) finish = std::max(finish, costs[r].seconds(shares[r]));
  }
  return finish;
}

}  // namespace bimetal::balance
