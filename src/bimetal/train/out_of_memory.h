#pragma once
// What people are told where a batch did not fit.

#include <cstdint>
#include <string>

#include "bimetal/progress/rank_figures.h"

namespace bimetal::train {

/// What is done about a rank's lack of memory, for people to read. `cap`: most that it gets from
/// now on.
std::string remedy(const progress::RankFigures& rank, std::int64_t cap);

}  // namespace bimetal::train
