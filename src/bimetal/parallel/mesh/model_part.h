#pragma once
// The part of a model that one rank of a mesh has: its stage's units, with its part of their
// tensors.

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel {

struct ModelPart {
  pipeline::StageModel stage;                         ///< to compute with
  std::shared_ptr<const tensor::TensorModel> tensor;  ///< nullptr: the stage's tensors are whole

  std::shared_ptr<const tensor::GroupRanks> tensor_ranks() const {
    return tensor ? tensor->ranks() : nullptr;
  }
};

/// By stage, how its tensors are cut; nothing of one, or of all, whose tensors stay whole.
using StageCuts = std::vector<std::optional<tensor::Cuts>>;

/// The cuts of the model `whole` for stages with parts of these weights. Errors: those of
/// tensor::Cuts.
StageCuts cuts_of_stages(const task::Model& whole, const PartWeights& weights);

/// This rank's part of `whole`, which is cut at `begins` into stages, and its tensors as `cuts` has
/// it for its stage. `between`: how its tensor ranks hold values that are not cut; `form_island`:
/// as GroupRanks has it. Handles on the same tensors, which become smaller where they are cut.
/// Collective. Errors: those of TensorModel.
ModelPart take_part(const Mesh& mesh, const task::Model& whole,
                    const std::vector<std::size_t>& begins, const StageCuts& cuts,
                    std::chrono::milliseconds timeout,
                    tensor::Between between = tensor::Between::whole,
                    c10d::FormIsland form_island = {});

/// The same of a model whose parameters are hollow (shard/flat_parameters.h), as their values come
/// later, from elsewhere: the part's own get memory, with anything in it, and no others.
ModelPart take_hollow_part(const Mesh& mesh, const task::Model& whole,
                           const std::vector<std::size_t>& begins, const StageCuts& cuts,
                           std::chrono::milliseconds timeout, c10d::FormIsland form_island = {});

// Adds the places of ranks in the mesh to errors of a step.

/// Adds two places to `error` if it lacks them: that of rank `own`, which has got it, and that of
/// the rank that it is about: "stage 0 of 2 (rank 0): …; rank 1 is stage 1 of 2".
Error named(const Error& error, const MeshShape& shape, int own);

}  // namespace bimetal::parallel
