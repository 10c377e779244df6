#pragma once
// What a pipeline's pieces of a model take, from what its units take on every rank. Pure.

#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/parallel/mesh/mesh.h"

namespace bimetal::train {

/// By piece, of each unit: the seconds of the slowest of its stage's ranks, of which each computes
/// its part of the tensors. Where stages have replicas of their own number, what a micro-batch
/// takes of the stage's time while its replicas compute as many at a time: `dealt` has the ranks'
/// weights by which they get them; empty: each as many as it is fast. `all`: of each rank, of each
/// unit; `parts`: weights of the ranks that have tensors in parts.
std::vector<std::vector<double>> piece_seconds(std::span<const double> all,
                                               const parallel::MeshShape& shape, std::size_t pieces,
                                               std::span<const double> parts,
                                               std::span<const double> dealt);

}  // namespace bimetal::train
