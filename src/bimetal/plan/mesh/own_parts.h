#pragma once
// Pipelines of neighbours whose number of parts of tensors differs by stage: for example one device
// with a whole stage before two that share the tensors of the next.

#include <optional>

#include "bimetal/plan/mesh/stages_choice.h"

namespace bimetal::plan {

/// With the wish's numbers of parts for each stage, and of replicas. Nothing if that cannot be.
std::optional<MeshChoice> in_parts_as_wished(const MeshInput& input, const Cluster& cluster,
                                             const StagesWish& wish);

/// The best of stages of one replica each, some of which are neighbours of one host with parts, if
/// the wish leaves the number of parts open, and of up to kDividedFreely devices. Nothing if none
/// can be.
std::optional<MeshChoice> in_own_parts(const MeshInput& input, const Cluster& cluster,
                                       const StagesWish& wish);

}  // namespace bimetal::plan
