#pragma once
// Data whose sums are known without computing them as the fabric does: a short pattern of small
// whole numbers, over and over, different on each rank.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/dtype.h"

namespace bimetal::fabric_bench {

/// One value for each of kPeriod consecutive elements.
using Pattern = std::vector<double>;
inline constexpr std::size_t kPeriod = 61;  ///< a prime: pieces of a buffer begin anywhere in it

/// What `rank` contributes. Sums over up to 40 ranks are exact in every type.
Pattern pattern_of(int rank);

/// The sum over `size` ranks.
Pattern sum_of_patterns(int size);

/// Fills `memory` with the pattern, from its element `first` on.
void fill(std::span<std::byte> memory, comm::DType dtype, const Pattern& pattern,
          std::size_t first = 0);

/// Empty if `memory` holds the pattern from its element `first` on, else what is wrong with it.
std::string difference(std::span<const std::byte> memory, comm::DType dtype, const Pattern& pattern,
                       std::size_t first = 0);

/// ‖memory − factor × pattern‖ / ‖factor × pattern‖, 0 for no elements.
double relative_error(std::span<const std::byte> memory, comm::DType dtype, const Pattern& pattern,
                      double factor);

}  // namespace bimetal::fabric_bench
