#pragma once
// A picture of a step: which device computes what, and when.

#include <string>
#include <vector>

#include "bimetal/parallel/schedule/simulate.h"

namespace bimetal::plan {

/// An SVG with a row for each stage, named by `names`, a box for each action with its micro-batch,
/// and the time below. `title` stands above. Error(InvalidArgument) unless there are as many names.
std::string timeline_svg(const std::string& title, const std::vector<std::string>& names,
                         const parallel::schedule::Simulation& run);

}  // namespace bimetal::plan
