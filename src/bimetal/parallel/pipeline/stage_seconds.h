#pragma once
// The times of a model's units on each stage of a pipeline, from their times on every rank. Pure.

#include <cstddef>
#include <vector>

#include "bimetal/parallel/mesh/mesh.h"

namespace bimetal::parallel::pipeline {

/// What ranks have measured, and how work is shared by those of a stage.
struct MeasuredUnits {
  std::vector<double> seconds;  ///< rank by rank, of each unit: forward and backward
  std::size_t units = 0;
  PartWeights parts = {};
  /// Weights of all ranks, by which those of an uneven stage get its micro-batches; empty: each as
  /// many as it is fast.
  std::vector<double> dealt = {};
  /// Seconds in which a micro-batch crosses each cut, by stage: as CutProblem::send has them.
  std::vector<std::vector<double>> send = {};
};

/// By stage, of each unit: the seconds of the slowest of its ranks, of which each computes its part
/// of the tensors. Where the shape is not even(), what a micro-batch takes of the stage's
/// time while its replicas, each as slow as the slowest of its ranks, compute as many at a time.
std::vector<std::vector<double>> stage_seconds(const MeasuredUnits& measured,
                                               const MeshShape& shape);

}  // namespace bimetal::parallel::pipeline
