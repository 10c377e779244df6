#pragma once
// meet() for programs built with torch: they also find each other under torchrun.

#include "bimetal/launch/meet.h"

namespace bimetal::launch {

/// As meet(), with torchrun's store where that is the job's.
comm::Group join_world(const RankEnvironment& env, const JoinOptions& options);

}  // namespace bimetal::launch
