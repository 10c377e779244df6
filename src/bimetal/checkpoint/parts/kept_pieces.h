#pragma once
// What a rank keeps of a model's parameters, whoever has cut them, as slices that checkpoints know.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/parts/part_slices.h"
#include "bimetal/checkpoint/slices/slice.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/tensor/cuts.h"
#include "bimetal/task/model_state.h"

namespace bimetal::checkpoint {

/// What a rank keeps of a parameter.
struct KeptPiece {
  std::string parameter;            ///< its name
  std::vector<std::int64_t> shape;  ///< of the whole parameter
  std::vector<KeptBlock> blocks;    ///< where it lies in that: all of `tensor`, in its order
  torch::Tensor tensor;
};
using KeptPieces = std::vector<KeptPiece>;

/// All parameters of `model`, each a piece of its own shape: of a rank that cuts up none.
KeptPieces whole_pieces(const task::ModelState& model);
/// The same of a rank that has its part of those that are cut.
KeptPieces part_pieces(const task::ModelState& model, const parallel::tensor::Cuts& cuts, int rank);

/// Gives a slice of what has that name, in its own shape and on the CPU.
using ReadSlice = std::function<torch::Tensor(const std::string& name, const Slice& wanted)>;

/// Of what has the form of `piece`, from what `read` gives of each slice.
torch::Tensor join_slices(const KeptPiece& piece,
                          const std::function<torch::Tensor(const Slice& wanted)>& read);

/// Gives parameters and buffers of a part of a model the values that `read` has of the whole one's,
/// one after the other. Errors: `read`'s.
void read_part(const parallel::ModelPart& part, const ReadSlice& read);

}  // namespace bimetal::checkpoint
