#pragma once
// What [mesh] may leave open.

#include <cstdint>

#include "bimetal/job/job_config.h"

namespace bimetal::job {

/// MeshConfig::stages and tensor where the job file says "auto": measured and chosen before
/// training.
inline constexpr std::int64_t kAutoStages = 0;
inline constexpr std::int64_t kAutoTensor = 0;

/// Whether either is left open.
inline bool is_open(const MeshConfig& mesh) {
  return mesh.stages == kAutoStages || mesh.tensor == kAutoTensor;
}

}  // namespace bimetal::job
