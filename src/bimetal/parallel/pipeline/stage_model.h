#pragma once
// A stage's part of a model.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// A tensor that several stages have, as GPT-2's embedding and head: each has it whole, or in the
/// parts of its ranks.
struct Tied {
  torch::Tensor tensor;     ///< undefined on stages that have not
  std::vector<int> stages;  ///< that have it, rising
  std::string name = {};    ///< in the whole model
};

/// Tensors have the names that they have in the whole model: a tied one's first, on all stages.
struct StageModel {
  std::vector<task::Model> pieces;  ///< by chunk: this stage's piece of each round
  task::Model model;                ///< the units of all of them
  std::vector<Tied> tied;           ///< the whole model's, in the same order on every stage
};

/// Where each of `pieces` pieces begins: 0 and then `cuts`. Error(InvalidArgument) for cuts that
/// are not one fewer than pieces, or not units of a model of so many, with what would do; `table`
/// is where who has given them calls them "cuts".
std::vector<std::size_t> begins_of(const std::vector<std::int64_t>& cuts, std::size_t pieces,
                                   std::size_t units, const std::string& table = "mesh.");

/// Stage `stage`'s of `model`, cut at `begins` into stages · chunks pieces. Handles on the same
/// tensors. The stages of one model agree on all but their own tensors.
StageModel make_stage(const task::Model& model, const std::vector<std::size_t>& begins, int stages,
                      int stage);

/// `stage` with the units of `model`, one for each of its own and of the same tensors, in the place
/// of these.
StageModel with_units(StageModel stage, const task::Model& model);

/// "units 0-2 (embedding … h.1)", with several pieces "units 0-2, 6-7 (…)".
std::string describe_units(const task::Model& whole, const std::vector<std::size_t>& begins,
                           int stages, int stage);

}  // namespace bimetal::parallel::pipeline
