#include "bimetal/parallel/pipeline/measured_cut.h"

#include "bimetal/parallel/pipeline/piece_seconds.h"

namespace bimetal::parallel::pipeline {

std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      std::size_t pieces, int micro_batches,
                                      const schedule::FittingEnds& fitting) {
  return schedule::cut(
             {.seconds = piece_seconds(measured, shape, pieces),
              .send = measured.send,
              .fitting = fitting,
              .micro_batches = micro_batches > 0 ? micro_batches : 4 * shape.pipeline_ranks()})
      .begins;
}

}  // namespace bimetal::parallel::pipeline
