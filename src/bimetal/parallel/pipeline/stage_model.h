#pragma once
// A stage's part of a model.

#include <torch/csrc/api/include/torch/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

// Error feedback of gradients between stages. The loss of encoding one micro-batch is added to the
// next one, and from the last one of a step to the next step (lazy error propagation: Song et al.,
// "Optimus-CC", ASPLOS 2023).

/// Of one rank. Keeps as much as the largest micro-batch's gradients of each place, in float32.
/// Use from one thread.
class LostGradients {
 public:
  struct Place {
    int piece = 0;          ///< that computes the gradient
    std::size_t value = 0;  ///< which of those that it got
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  /// Adds what earlier ones of the place have lost to `floats` (float32, contiguous, on the CPU,
  /// the caller's own) and encodes that. Micro-batches may have unequal numbers of samples (their
  /// first dimension): what a smaller one has no sample for waits. Where they differ in other
  /// dimensions, it is forgotten. So is what is not finite.
  torch::Tensor encode(comm::Scheme scheme, const Place& place, torch::Tensor floats);

 private:
  std::map<Place, torch::Tensor> lost_;
};

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
