#pragma once
// Where to cut a model, by the measured times of its units on each rank.

#include <cstddef>
#include <vector>

#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/stage_seconds.h"
#include "bimetal/parallel/schedule/cut.h"

namespace bimetal::parallel::pipeline {

/// The unit that each piece begins with, of which every stage has `chunks`, so that a step of a
/// pipeline of `shape` is shortest, and each stage fits, as far as `fitting` knows.
/// `micro_batches`: of which `measured` is one, in a step; 0 where that is not known: four for each
/// rank of the pipeline. Errors: cut()'s.
std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      int chunks, int micro_batches,
                                      const schedule::FittingEnds& fitting = {});

}  // namespace bimetal::parallel::pipeline
