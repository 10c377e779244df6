#pragma once
// How long all-reduces take: for one transport beside another, where the benchmark is not built.

#include <functional>
#include <string>

#include "bimetal/comm/group.h"

namespace bimetal::testing {

/// Collective: `say` gets a line "pace BYTES: MICROSECONDS" for each of a few sizes, the median of
/// this rank's calls.
void measure_pace(comm::Group group, const std::function<void(const std::string&)>& say);

}  // namespace bimetal::testing
