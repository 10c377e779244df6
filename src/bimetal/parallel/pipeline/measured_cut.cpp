#include "bimetal/parallel/pipeline/measured_cut.h"

#include <algorithm>

#include "bimetal/parallel/pipeline/piece_seconds.h"

namespace bimetal::parallel::pipeline {

std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      std::size_t pieces, int micro_batches,
                                      const schedule::FittingEnds& fitting) {
  return schedule::cut({.seconds = piece_seconds(measured, shape, pieces),
                        .fitting = fitting,
                        .micro_batches = std::max(4 * shape.pipeline_ranks(), micro_batches)})
      .begins;
}

}  // namespace bimetal::parallel::pipeline
