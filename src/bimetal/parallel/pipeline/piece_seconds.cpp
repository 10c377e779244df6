#include "bimetal/parallel/pipeline/piece_seconds.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace bimetal::parallel::pipeline {
namespace {

/// What each rank gets of its stage's micro-batches; nothing where that goes by speed.
std::vector<double> dealt_parts(const MeshShape& shape, std::span<const double> dealt) {
  std::vector<double> whole(static_cast<std::size_t>(shape.stages));
  const auto stage_of = [&](std::size_t rank) {
    return static_cast<std::size_t>(place_of(shape, static_cast<int>(rank)).stage);
  };
  for (std::size_t rank = 0; rank < dealt.size(); ++rank) whole[stage_of(rank)] += dealt[rank];
  std::vector<double> parts;
  for (std::size_t rank = 0; rank < dealt.size(); ++rank) {
    parts.push_back(dealt[rank] / std::max(1e-12, whole[stage_of(rank)]));
  }
  return parts;
}

}  // namespace

std::vector<std::vector<double>> piece_seconds(const MeasuredUnits& measured,
                                               const MeshShape& shape, std::size_t pieces) {
  const auto& [all, units, parts, dealt, send] = measured;
  const auto whole = std::reduce(parts.begin(), parts.end());
  const auto of_stage = shape.even() ? std::vector<double>() : dealt_parts(shape, dealt);
  const bool by_speed = !shape.even() && of_stage.empty();
  std::vector<std::vector<double>> seconds(pieces, std::vector<double>(units));
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const auto place = place_of(shape, rank);
    const auto part = parts[static_cast<std::size_t>(place.tensor)] / whole;
    const auto share = of_stage.empty() ? part : part * of_stage[at];
    for (auto piece = static_cast<std::size_t>(place.stage); piece < pieces;
         piece += static_cast<std::size_t>(shape.stages)) {
      for (std::size_t unit = 0; unit < units; ++unit) {
        auto& longest = seconds[piece][unit];
        const auto own = share * all[at * units + unit];
        longest = by_speed && longest > 0 ? 1 / (1 / longest + 1 / std::max(own, 1e-12))
                                          : std::max(longest, own);
      }
    }
  }
  return seconds;
}

}  // namespace bimetal::parallel::pipeline
