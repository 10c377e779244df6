#pragma once
// Waits for other stages. The waits find out which rank delays all of them.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/work.h"
#include "bimetal/parallel/mesh/mesh.h"

namespace bimetal::parallel::pipeline {

/// How long a stage waits for another one, and what sets that, in the words of who has set it.
struct Patience {
  std::chrono::milliseconds timeout{};
  std::string set_by = "parallel.timeout_s";
};

/// Whom a stage waits for, and in which step.
struct Awaited {
  const Mesh& mesh;
  int peer;  ///< a rank of mesh.pipeline()
  std::int64_t step;
};

/// Waits for `work`, of which `peer` has its part to do, until `deadline`, which is that of
/// `patience`. Who has waited for half of the time that was left tells the others of the pipeline
/// for whom. Once the deadline has passed: Error(Timeout), which begins with what `late` gives and
/// names the rank that is waited for in the end, by this one or by those whom it waits for.
/// Otherwise the work's own errors are left to it.
void wait_for_peer(const Awaited& awaited, const Patience& patience, const comm::Work& work,
                   Deadline deadline, const std::function<std::string()>& late);

}  // namespace bimetal::parallel::pipeline
