#pragma once
// Evaluation by way of a pipeline's stages.

#include <cstdint>
#include <functional>
#include <span>

#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/predict/evaluate.h"

namespace bimetal::predict {

/// Which replicas of the stages compute chunks, of which there are so many of weight 1.
using DealChunks = std::function<parallel::schedule::Deal(std::span<const std::int64_t> chunks)>;

/// For evaluate(): the ranks of a pipeline compute the outputs for their chunks together, by
/// `runner`. A replica is a set, or all ranks are, where stages have replicas of their own number.
/// `stage`: in evaluation mode. All of them must outlive what is returned.
Through through_stages(const parallel::Mesh& mesh, const parallel::pipeline::StageModel& stage,
                       parallel::pipeline::Runner& runner, DealChunks deal);

/// What a stage computes without gradients, of inputs that `inputs` gives where the model begins.
parallel::pipeline::StageWork forward_alone(const parallel::pipeline::StageModel& stage,
                                            std::function<task::Values(int micro_batch)> inputs);

}  // namespace bimetal::predict
