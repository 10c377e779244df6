#pragma once
// What it takes to send a micro-batch from stage to stage, over the links between their ranks.

#include <cstddef>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/plan/link_probe.h"
#include "bimetal/train/pipeline/unit_costs.h"

namespace bimetal::train {

/// The ways by which activations go from a stage to the next one, and gradients back.
struct StageWays {
  std::vector<plan::LinkSpeed> there = {}, back = {};
  double sent = 1;  ///< of each byte that goes by them
};

/// By stage but the last: from which rank to which. Of the last one, too, where a micro-batch comes
/// by it more than once, as with several `chunks` of the model on each stage.
std::vector<std::vector<plan::RankPair>> ways_of(const parallel::MeshShape& shape, int chunks);

/// These, measured, with what `compression` leaves of values of `dtype`: where it shortens any of a
/// stage's ways, that is the slow one. The same figures on every rank. Collective.
std::vector<StageWays> measure_ways(comm::Group group, const parallel::MeshShape& shape, int chunks,
                                    const parallel::pipeline::ActivationCompression& compression,
                                    torch::Dtype dtype);

/// By stage that has ways: seconds in which a micro-batch crosses the cut behind each unit both
/// ways, over the slowest of these. Pure: what schedule::CutProblem::send wants.
std::vector<std::vector<double>> send_seconds(const std::vector<StageWays>& ways,
                                              const CutBytes& bytes);

}  // namespace bimetal::train
