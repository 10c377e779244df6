#include "bimetal/parallel/pipeline/measured_cut.h"

namespace bimetal::parallel::pipeline {

std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      int chunks, int micro_batches,
                                      const schedule::FittingEnds& fitting) {
  return schedule::cut(
             {.seconds = stage_seconds(measured, shape),
              .send = measured.send,
              .fitting = fitting,
              .micro_batches = micro_batches > 0 ? micro_batches : 4 * shape.pipeline_ranks(),
              .chunks = chunks})
      .begins;
}

}  // namespace bimetal::parallel::pipeline
