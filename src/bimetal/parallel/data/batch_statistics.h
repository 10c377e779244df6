#pragma once
// Running statistics of batch normalisation over all ranks' samples.

#include <chrono>
#include <optional>
#include <span>

#include "bimetal/comm/group.h"
#include "bimetal/device/stream_timer.h"
#include "bimetal/task/batch_norm.h"

namespace bimetal::parallel {

/// What this rank's samples of a step have shown, on its way to the host: of all layers in one
/// copy. Nothing where there are none, or no other ranks.
std::optional<device::LateNumbers> numbers_of(std::span<const task::BatchStatistics> statistics,
                                              const comm::Group& group);

/// Sums up what the ranks' samples of a step have shown, in double precision, so that all ranks go
/// on with the same running statistics once each has merged it (task::merge). `here`: this rank's,
/// by numbers_of(). Collective; nothing is sent where there are none. Errors: the fabric's.
void sum_over_ranks(std::span<const task::BatchStatistics> statistics,
                    const std::optional<device::LateNumbers>& here, comm::Group group,
                    std::chrono::milliseconds timeout);

/// Forgets what a step has shown that is not to count.
void discard(std::span<const task::BatchStatistics> statistics);

}  // namespace bimetal::parallel
