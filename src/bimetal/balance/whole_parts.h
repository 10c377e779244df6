#pragma once
// Splits whole pieces (heads of attention, columns of a matrix) over ranks that compute side by
// side and wait for each other. The finish of the slowest rank is minimised.

#include <cstdint>
#include <span>
#include <vector>

namespace bimetal::balance {

/// How many of `total` pieces each rank gets: at least 1, and the largest count ÷ weight as small
/// as whole pieces allow. Equal arguments give equal parts everywhere. Errors: InvalidArgument
/// unless there are as many pieces as ranks, and for weights that are not positive and finite.
std::vector<std::int64_t> whole_parts(std::int64_t total, std::span<const double> weights);

}  // namespace bimetal::balance
