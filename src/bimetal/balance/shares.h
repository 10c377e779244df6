#pragma once
// Splitting a global batch B over devices. Pure functions; docs/balance.md gives the mathematics.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "bimetal/balance/cost_model.h"

namespace bimetal::balance {

/// Samples of the global batch for each rank; the sum is always the global batch.
using Shares = std::vector<std::int64_t>;

inline constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();

struct Device {
  CostModel cost;
  std::int64_t cap = kNoCap;  ///< most samples that fit into its memory at once
};

/// Minimises the slowest finish, max over b_i > 0 of t_i(b_i), subject to Σ b_i = global_batch and
/// b_i ≤ cap_i; exact in integers. A device whose α exceeds the best finish gets 0. Devices with an
/// unknown cost are treated as the mean of the known ones (as equals if none is known).
/// Error(OutOfMemory) if Σ cap_i < global_batch, Error(InvalidArgument) for an empty list.
Shares balanced_shares(std::span<const Device> devices, std::int64_t global_batch);

/// As equal as integers allow; the first ranks get the remainder.
Shares equal_shares(int ranks, std::int64_t global_batch);

/// In proportion to `weights` (≥ 0, not all 0), largest remainder first.
Shares weighted_shares(std::span<const double> weights, std::int64_t global_batch);

/// Shares for a smaller batch in the same proportions (an epoch's last, short one).
Shares scale_shares(std::span<const std::int64_t> shares, std::int64_t batch);

/// The slowest finish that these shares lead to, in seconds.
double finish_seconds(std::span<const Device> devices, std::span<const std::int64_t> shares);

}  // namespace bimetal::balance
