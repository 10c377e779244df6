#pragma once
// Between the state of a whole model's training, as checkpoints hold it, and what each stage of a
// pipeline has of it.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <vector>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/task/model_state.h"

namespace bimetal::train {

/// A model's tensors without their values.
struct ModelOutline {
  struct Entry {
    std::string name;
    bool trained = false;
  };
  explicit ModelOutline(const task::ModelState& whole);
  std::vector<Entry> parameters, buffers;
  std::vector<std::string> other_names;
};

/// Gives `of_stage`, which steps the parameters of `stage`, its part of what `whole` has learnt
/// about `model`. Names are those of the whole model.
void take_stage_states(const torch::optim::Optimizer& whole, const task::ModelState& model,
                       const task::ModelState& stage, torch::optim::Optimizer& of_stage);

struct WholeState {
  task::ModelState model;
  checkpoint::TensorMap learnt;  ///< as checkpoint::optimizer_tensors names it
};

/// Puts together on rank 0 what the stages of its pipeline have; empty elsewhere. `stage` and
/// `learnt` (as checkpoint::optimizer_tensors names it) are this rank's; those of other replicas do
/// not matter. Collective over the mesh. Rank 0 must have the memory.
WholeState gather_stage_states(const parallel::Mesh& mesh, const ModelOutline& outline,
                               const task::ModelState& stage, const checkpoint::TensorMap& learnt);

}  // namespace bimetal::train
