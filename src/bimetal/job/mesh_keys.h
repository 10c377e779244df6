#pragma once
// What [mesh] may leave open.

#include <cstdint>

#include "bimetal/job/job_config.h"

namespace bimetal::job {

/// MeshConfig::stages and tensor where the job file says "auto": measured and chosen before
/// training.
inline constexpr std::int64_t kAutoStages = 0;
inline constexpr std::int64_t kAutoTensor = 0;
/// MeshConfig::replicas: as many as there are workers for.
inline constexpr std::int64_t kAutoReplicas = 0;

/// Each number of a mesh is at most that.
inline constexpr std::int64_t kMostRanks = 1 << 20;

/// Of MeshConfig::schedule: whichever is fastest. Job files that leave stages or tensor open and
/// name no schedule have it.
inline constexpr const char* kAutoSchedule = "auto";

/// Whether either is left open.
inline bool is_open(const MeshConfig& mesh) {
  return mesh.stages == kAutoStages || mesh.tensor == kAutoTensor;
}

}  // namespace bimetal::job
