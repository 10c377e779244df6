#pragma once
// Running statistics of batch normalisation over all ranks' samples.

#include <chrono>
#include <span>

#include "bimetal/comm/group.h"
#include "bimetal/task/batch_norm.h"

namespace bimetal::parallel {

/// Sums up what the ranks' samples of a step have shown, in double precision, so that all ranks go
/// on with the same running statistics once each has merged it (task::merge). Collective; nothing
/// is sent where there are none. Errors: the fabric's.
void sum_over_ranks(std::span<const task::BatchStatistics> statistics, comm::Group group,
                    std::chrono::milliseconds timeout);

/// Forgets what a step has shown that is not to count.
void discard(std::span<const task::BatchStatistics> statistics);

}  // namespace bimetal::parallel
