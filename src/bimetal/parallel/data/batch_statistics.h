#pragma once
// Running statistics of batch normalisation over all ranks' samples.

#include <chrono>
#include <span>

#include "bimetal/comm/group.h"
#include "bimetal/task/batch_norm.h"

namespace bimetal::parallel {

/// Sums up what the ranks' samples of a step have shown, in double precision, and merges it, so
/// that all ranks go on with the same running statistics: task::merge over all samples. Collective;
/// nothing is sent where there are none. Errors: the fabric's.
void merge_over_ranks(std::span<const task::BatchStatistics> statistics, comm::Group group,
                      std::chrono::milliseconds timeout);

/// The first half of that, for what is merged on each rank by itself once all have agreed.
void sum_over_ranks(std::span<const task::BatchStatistics> statistics, comm::Group group,
                    std::chrono::milliseconds timeout);

/// Forgets what a step has shown that is not to count.
void discard(std::span<const task::BatchStatistics> statistics);

}  // namespace bimetal::parallel
