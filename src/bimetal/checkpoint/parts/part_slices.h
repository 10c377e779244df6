#pragma once
// The place in a whole parameter of the piece that a rank keeps: all of it, a tensor rank's part, a
// shard, or a shard of such a part. Pure.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/slices/tensor_index.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/task/task.h"

namespace bimetal::checkpoint {

/// Elements that follow each other in the kept piece, in a form of their own.
struct KeptBlock {
  std::vector<std::int64_t> shape;
  std::int64_t dim = 0;       ///< along which, in that form, several slices stand behind each other
  std::vector<Slice> slices;  ///< of the whole parameter
};

/// All of the part of a tensor of `sizes` that lies at `where`, in the part's own form.
KeptBlock block_of_part(const std::vector<std::int64_t>& sizes,
                        const parallel::tensor::PartPlaces& where);

/// The elements of that part in `range`, which counts them row-major, as blocks: partial rows, and
/// between them whole rows. Together the blocks have all of the range, in its order.
std::vector<KeptBlock> blocks_of_part(const std::vector<std::int64_t>& sizes,
                                      const parallel::tensor::PartPlaces& where,
                                      const parallel::shard::Range& range);

// The pieces of a model's parameters that a rank keeps, whatever has cut them, as slices that
// checkpoints know.

/// The piece of a parameter that a rank keeps.
struct KeptPiece {
  std::string parameter;            ///< its name
  std::vector<std::int64_t> shape;  ///< of the whole parameter
  std::vector<KeptBlock> blocks;    ///< where it lies in that: all of `tensor`, in its order
  torch::Tensor tensor;
};
using KeptPieces = std::vector<KeptPiece>;

/// All parameters of `model`, each a piece of its own shape: for a rank that cuts up none.
KeptPieces whole_pieces(const task::ModelState& model);
/// The same of a rank that has its part of those that are cut.
KeptPieces part_pieces(const task::ModelState& model, const parallel::tensor::Cuts& cuts, int rank);

/// Gives a slice of the tensor of that name, in the slice's shape and on the CPU.
using ReadSlice = std::function<torch::Tensor(const std::string& name, const Slice& wanted)>;

/// A tensor in the form of `piece`, joined from the slices that `read` gives.
torch::Tensor join_slices(const KeptPiece& piece,
                          const std::function<torch::Tensor(const Slice& wanted)>& read);

/// Gives parameters and buffers of a part of a model the values that `read` has of the whole one's,
/// one after the other. Errors: `read`'s.
void read_part(const parallel::ModelPart& part, const ReadSlice& read);

}  // namespace bimetal::checkpoint
