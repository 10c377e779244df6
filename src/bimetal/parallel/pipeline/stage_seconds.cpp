#include "bimetal/parallel/pipeline/stage_seconds.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace bimetal::parallel::pipeline {
namespace {

/// For each rank, the fraction of its stage's micro-batches that its replica gets. Empty where that
/// goes by speed.
std::vector<double> dealt_parts(const MeshShape& shape, std::span<const double> dealt) {
  std::vector<double> whole(static_cast<std::size_t>(shape.stages)), replicas(dealt.size());
  const auto place = [&](std::size_t rank) { return place_of(shape, static_cast<int>(rank)); };
  const auto first = [&](std::size_t rank) {
    return rank - static_cast<std::size_t>(place(rank).tensor);
  };
  for (std::size_t rank = 0; rank < dealt.size(); ++rank) {
    whole[static_cast<std::size_t>(place(rank).stage)] += dealt[rank];
    replicas[first(rank)] += dealt[rank];
  }
  std::vector<double> parts;
  for (std::size_t rank = 0; rank < dealt.size(); ++rank) {
    const auto of_stage = whole[static_cast<std::size_t>(place(rank).stage)];
    parts.push_back(replicas[first(rank)] / std::max(1e-12, of_stage));
  }
  return parts;
}

/// The fraction of a stage's tensors that one of its tensor ranks has.
double part_of_tensors(const PartWeights& weights, const MeshPlace& place) {
  if (weights.empty()) return 1;
  const auto& of_stage = weights[static_cast<std::size_t>(place.stage)];
  return of_stage[static_cast<std::size_t>(place.tensor)] /
         std::reduce(of_stage.begin(), of_stage.end());
}

}  // namespace

std::vector<std::vector<double>> stage_seconds(const MeasuredUnits& measured,
                                               const MeshShape& shape) {
  const auto& [all, units, parts, dealt, send] = measured;
  const auto of_stage = shape.even() ? std::vector<double>() : dealt_parts(shape, dealt);
  const bool by_speed = !shape.even() && of_stage.empty();
  std::vector<std::vector<double>> seconds(static_cast<std::size_t>(shape.stages),
                                           std::vector<double>(units));
  for (int first = 0; first < shape.ranks();) {
    const auto place = place_of(shape, first);
    const int behind = first + shape.tensor_of(place.stage);
    std::vector<double> own(units);
    for (int rank = first; rank < behind; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const auto share =
          part_of_tensors(parts, place_of(shape, rank)) * (of_stage.empty() ? 1 : of_stage[at]);
      for (std::size_t unit = 0; unit < units; ++unit) {
        own[unit] = std::max(own[unit], share * all[at * units + unit]);
      }
    }
    auto& longest = seconds[static_cast<std::size_t>(place.stage)];
    for (std::size_t unit = 0; unit < units; ++unit) {
      longest[unit] = by_speed && longest[unit] > 0
                          ? 1 / (1 / longest[unit] + 1 / std::max(own[unit], 1e-12))
                          : std::max(longest[unit], own[unit]);
    }
    first = behind;
  }
  return seconds;
}

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
