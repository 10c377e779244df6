#pragma once
// The record of each step for the copy of server 0, so that the job's report has no gap when it
// takes over: a StepEvent as a message.

#include <span>

#include "bimetal/parallel/server/coordinator.h"

namespace bimetal::parallel::server {

Body encode(const StepEvent& step);

/// Error(CorruptData) for anything that does not fit.
StepEvent decode_step_record(std::span<const std::byte> body);

}  // namespace bimetal::parallel::server
