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

/// The rank that a stage waits for, and the step.
struct Awaited {
  const Mesh& mesh;
  int peer;  ///< a rank of mesh.pipeline()
  std::int64_t step;
};

/// Waits for `work`, in which `peer` takes part, until `deadline`, which is that of `patience`. A
/// rank that has waited for half of the time left tells the others of the pipeline for whom. Once
/// the deadline has passed: Error(Timeout), which begins with the text of `late` and names the rank
/// at the end of the chain of waits. Other errors stay with the work.
void wait_for_peer(const Awaited& awaited, const Patience& patience, const comm::Work& work,
                   Deadline deadline, const std::function<std::string()>& late);

}  // namespace bimetal::parallel::pipeline
