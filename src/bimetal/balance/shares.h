#pragma once
// Splits a global batch B over devices. Pure functions; docs/balance.md has the mathematics. Equal
// arguments give equal shares on every platform, so ranks never have to exchange the result.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "bimetal/balance/cost_model.h"

namespace bimetal::balance {

/// Samples of the global batch for each rank; the sum is always the global batch.
using Shares = std::vector<std::int64_t>;

/// The cap of a device whose memory sets no limit.
inline constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();

/// Larger batches are refused: products of two batch sizes must fit into 64 bits.
inline constexpr std::int64_t kMaxBatch = std::numeric_limits<std::int32_t>::max();

/// Facts on one device.
struct Device {
  CostModel cost;             ///< seconds of a batch by its samples
  std::int64_t cap = kNoCap;  ///< most samples that fit into its memory at once
};

// Every function below throws Error(InvalidArgument) for an empty list, a negative share or a batch
// outside 0…kMaxBatch.

/// Minimises the slowest finish, max over b_i > 0 of t_i(b_i), subject to Σ b_i = global_batch and
/// b_i ≤ cap_i; exact in integers. A device whose α exceeds the best finish gets 0. Devices with an
/// unknown cost are treated as the mean of the known ones (as equals if none is known).
/// Error(OutOfMemory) if Σ cap_i < global_batch.
Shares balanced_shares(std::span<const Device> devices, std::int64_t global_batch);

/// As equal as integers allow; the first ranks get the remainder.
Shares equal_shares(int ranks, std::int64_t global_batch);

/// In proportion to `weights` (finite, ≥ 0, not all 0), largest remainder first; a weight of 0 gets
/// nothing.
Shares weighted_shares(std::span<const double> weights, std::int64_t global_batch);

/// Shares for another batch in the same proportions (an epoch's last, short one), largest remainder
/// first. A share of 0 stays 0, a larger share never gets less than a smaller one, and none grows
/// when batch ≤ Σ shares. `shares` may not all be 0 unless batch is.
Shares scale_shares(std::span<const std::int64_t> shares, std::int64_t batch);

/// The rank of each item of unequal weight, so that the ranks' weights come near the proportions of
/// `shares`. Heaviest first, each to the rank that would then be first through with its items, at a
/// speed of its share (Gonzalez, Ibarra and Sahni, "Bounds for LPT schedules on uniform
/// processors", 1977). A share of 0 gets nothing. Weights are ≥ 0 and may not exceed kMaxBatch;
/// shares may not all be 0.
std::vector<int> deal_out(std::span<const std::int64_t> weights,
                          std::span<const std::int64_t> shares);

/// The slowest finish that these shares lead to, in seconds.
double finish_seconds(std::span<const Device> devices, std::span<const std::int64_t> shares);

// Parts of a whole that are kept twice. Each rank has its own part and a copy of another's, and
// room for both together.

/// The largest parts, in the unit of `rooms`, that ranks can have. Ranks with a part stand in a
/// ring, in their order, and the next one keeps the copy. So a rank's own part and that of the one
/// before it come to no more than its room. If the parts of all add up to more without ranks that
/// have little room, these have no part and no copy. Among parts with the same sum it chooses equal
/// ones for equal ranks. With room on fewer than two ranks nobody has a part. A rank that is alone
/// keeps what it can, once. Pure.
///
/// By the linear program of a maximum fractional matching (Schrijver, "Combinatorial optimization",
/// 2003, section 30.1) on a cycle: a rank is a vertex, its part the edge to the next one.
std::vector<double> ring_parts(std::span<const double> rooms);

// Splits whole pieces (heads of attention, columns of a matrix) over ranks that compute side by
// side and wait for each other. The finish of the slowest rank is minimised.

/// How many of `total` pieces each rank gets: at least 1, and the largest count ÷ weight as small
/// as whole pieces allow. Equal arguments give equal parts everywhere. Errors: InvalidArgument
/// unless there are as many pieces as ranks, and for weights that are not positive and finite.
std::vector<std::int64_t> whole_parts(std::int64_t total, std::span<const double> weights);

}  // namespace bimetal::balance
