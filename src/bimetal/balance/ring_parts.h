#pragma once
// Parts of a whole that are kept twice. Each rank has its own part and a copy of another's, and
// room for both together.

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

}  // namespace bimetal::balance
