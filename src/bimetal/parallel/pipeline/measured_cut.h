#pragma once
// Where to cut a model, from what its units take on each rank.

#include <cstddef>
#include <vector>

#include "bimetal/parallel/mesh/mesh.h"

namespace bimetal::parallel::pipeline {

/// What ranks have measured.
struct MeasuredUnits {
  std::vector<double> seconds;  ///< rank by rank, of each unit: forward and backward
  std::size_t units = 0;
};

/// The unit that each of `pieces` pieces begins with, so that a step of a pipeline of `shape` is
/// shortest. A stage takes as long as the slowest of its ranks, of which each computes its part of
/// tensors by the weights `parts`; where the stages' replicas are uneven, as long as its replicas
/// take that share its micro-batches. `micro_batches`: 0 where that is not known. Errors: cut()'s.
std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      std::size_t pieces, int micro_batches,
                                      const std::vector<double>& parts = {1});

}  // namespace bimetal::parallel::pipeline
