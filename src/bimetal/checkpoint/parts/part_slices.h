#pragma once
// Where what a rank keeps of a parameter lies in the whole one: all of it, a tensor rank's part, a
// shard, or a shard of such a part. Pure.

#include <cstdint>
#include <vector>

#include "bimetal/checkpoint/slices/slice.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/parallel/tensor/cuts.h"

namespace bimetal::checkpoint {

/// Elements that follow each other in what is kept, in a form of their own.
struct KeptBlock {
  std::vector<std::int64_t> shape;
  std::int64_t dim = 0;       ///< along which, in that form, several slices stand behind each other
  std::vector<Slice> slices;  ///< of the whole parameter
};

/// All of the part of a tensor of `sizes` that lies at `where`, in the part's own form.
KeptBlock block_of_part(const std::vector<std::int64_t>& sizes,
                        const parallel::tensor::PartPlaces& where);

/// Of that part the elements in `range`, which counts them row-major: rows that are there in part,
/// and between them those that are there whole. Together the blocks have all of the range, in its
/// order.
std::vector<KeptBlock> blocks_of_part(const std::vector<std::int64_t>& sizes,
                                      const parallel::tensor::PartPlaces& where,
                                      const parallel::shard::Range& range);

}  // namespace bimetal::checkpoint
