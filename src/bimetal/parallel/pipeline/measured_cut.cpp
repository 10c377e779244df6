#include "bimetal/parallel/pipeline/measured_cut.h"

#include <algorithm>
#include <numeric>

#include "bimetal/parallel/schedule/cut.h"

namespace bimetal::parallel::pipeline {
namespace {

std::vector<std::vector<double>> by_piece(const MeasuredUnits& measured, const MeshShape& shape,
                                          std::size_t pieces, const std::vector<double>& parts) {
  const auto& [all, units] = measured;
  const auto whole = std::reduce(parts.begin(), parts.end());
  std::vector<std::vector<double>> seconds(pieces, std::vector<double>(units));
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const auto place = place_of(shape, rank);
    const auto part = parts[static_cast<std::size_t>(place.tensor)] / whole;
    for (auto piece = static_cast<std::size_t>(place.stage); piece < pieces;
         piece += static_cast<std::size_t>(shape.stages)) {
      for (std::size_t unit = 0; unit < units; ++unit) {
        auto& longest = seconds[piece][unit];
        const auto own = part * all[static_cast<std::size_t>(rank) * units + unit];
        longest = shape.even() || longest == 0 ? std::max(longest, own)
                                               : 1 / (1 / longest + 1 / std::max(own, 1e-12));
      }
    }
  }
  return seconds;
}

}  // namespace

std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      std::size_t pieces, int micro_batches,
                                      const std::vector<double>& parts) {
  return schedule::cut({.seconds = by_piece(measured, shape, pieces, parts),
                        .micro_batches = std::max(4 * shape.pipeline_ranks(), micro_batches)})
      .begins;
}

}  // namespace bimetal::parallel::pipeline
