#pragma once
// The facts that combinations.cpp looks at. Private to this folder.

#include <algorithm>
#include <string_view>

#include "bimetal/job/job_config.h"
#include "bimetal/job/job_keys.h"

namespace bimetal::job {

/// The request, from any source.
struct Asked {
  const JobConfig& job;
  bool low, float16;  ///< precision of any worker

  bool unlike;  ///< not all of them compute in the same

  bool elastic() const { return job.elastic.min_workers > 0; }
  bool in_parts() const { return job.mesh.tensor > 1; }
  bool open() const { return is_open(job.mesh); }
  bool stages() const { return job.mesh.stages > 1 || job.mesh.stages == kAutoStages; }
  /// Stages with replicas of their own number.
  bool uneven() const {
    const auto& replicas = job.mesh.stage_replicas;
    return !replicas.empty() && std::ranges::min(replicas) != std::ranges::max(replicas);
  }
  /// Some stage is said to have several replicas.
  bool replicated() const {
    const auto& replicas = job.mesh.stage_replicas;
    return job.mesh.replicas > 1 || (!replicas.empty() && std::ranges::max(replicas) > 1);
  }
  /// Stages with tensor ranks of their own number.
  bool parts_uneven() const {
    const auto& ranks = job.mesh.stage_tensor;
    return !ranks.empty() && std::ranges::min(ranks) != std::ranges::max(ranks);
  }
  bool servers() const { return job.parallel.mode == "server"; }
  bool updates_in_backward() const { return job.zero.update == "backward"; }
  /// Anything, to one place or the other.
  bool offloads(std::string_view place, std::string_view other) const {
    const auto is = [&](std::string_view to) { return to == place || to == other; };
    return is(job.zero.offload_optimizer) || is(job.zero.offload_parameters);
  }
};

struct Combination {
  bool (*asked)(const Asked&);
  std::string_view why;
};

}  // namespace bimetal::job
