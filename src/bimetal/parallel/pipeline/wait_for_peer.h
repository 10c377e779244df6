#pragma once
// Waits for other stages, which find out who keeps all of them waiting.

#include <cstdint>
#include <functional>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/work.h"
#include "bimetal/parallel/mesh/mesh.h"

namespace bimetal::parallel::pipeline {

/// Waits for `work`, in step `step`, of which rank `peer` of mesh.pipeline() has its part to do. A
/// rank that has waited for half of its time tells the others of the pipeline for whom. Once the
/// deadline has passed: Error(Timeout), which begins with what `late` gives and names the rank that
/// is waited for in the end, by the peer or by those whom the peer waits for. Otherwise the work's
/// own errors are left to it.
void wait_for_peer(const Mesh& mesh, int peer, std::int64_t step, const comm::Work& work,
                   Deadline deadline, const std::function<std::string()>& late);

}  // namespace bimetal::parallel::pipeline
