#pragma once
// Parts of a whole that are kept twice. Each rank has its own part and a copy of another's, and
// room for both together.

#include <cstdint>
#include <span>
#include <vector>

namespace bimetal::balance {

/// The largest parts, in the unit of `rooms`, that ranks can have: those with a part stand in a
/// ring, in their order, and the next one in it keeps the copy, so that a rank's own part and that
/// of the one before it come to no more than its room. Ranks with little room have none, and are
/// spared a copy, where all come to more without them. Of the parts that come to the same, ones
/// that are alike where ranks are. With room on fewer than two ranks nobody has a part; one that is
/// alone keeps what it can, once. Pure.
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
