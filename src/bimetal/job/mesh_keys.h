#pragma once
// What [mesh] may leave open.

#include <cstdint>

namespace bimetal::job {

/// MeshConfig::stages where the job file says "auto": measured and chosen before training.
inline constexpr std::int64_t kAutoStages = 0;

}  // namespace bimetal::job
