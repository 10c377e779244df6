#pragma once
// Verifies that all ranks have the same model before any gradient travels.

#include <chrono>

#include "bimetal/comm/group.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel {

/// Compares count, order, names, shapes, types and requires_grad of parameters and buffers over all
/// ranks. Throws the same Error(CallMismatch) on every rank when they differ: it names the lowest
/// rank that differs from rank 0, and the first difference. The group stays usable. Collective;
/// costs one exchange of 16 bytes when all agree. Devices may differ.
void check_same_on_all_ranks(const task::ModelState& state, comm::Group group,
                             std::chrono::milliseconds timeout);

}  // namespace bimetal::parallel
