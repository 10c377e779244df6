#include "bimetal/train/pipeline/lanes.h"

#include <algorithm>

namespace bimetal::train {

namespace {

/// Of `weight` the part that `number` of `all` has.
std::int64_t even_part(std::int64_t weight, int number, int all) {
  return weight * (number + 1) / all - weight * number / all;
}

}  // namespace

Lanes::Lanes(const parallel::MeshShape& shape, int rank) : shape_(shape), rank_(rank) {}

std::int64_t Lanes::counted(std::int64_t weight) const {
  const auto place = parallel::place_of(shape_, rank_);
  if (!shape_.even()) {
    const int parts = shape_.tensor_of(place.stage);
    return even_part(even_part(weight, place.stage, shape_.stages),
                     place.replica * parts + place.tensor, shape_.replicas_of(place.stage) * parts);
  }
  return even_part(weight, place.stage * shape_.tensor + place.tensor, ranks() / count());
}

std::vector<std::int64_t> Lanes::by_rank(const std::vector<std::int64_t>& by_lane) const {
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < ranks(); ++rank) {
    all.push_back(by_lane[static_cast<std::size_t>(of(rank))]);
  }
  return all;
}

std::vector<balance::StepFigures> Lanes::learnt(
    std::span<const progress::RankFigures> figures) const {
  std::vector<balance::StepFigures> lanes(static_cast<std::size_t>(count()));
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto& told = figures[static_cast<std::size_t>(rank)];
    auto& lane = lanes[static_cast<std::size_t>(of(rank))];
    lane.batch += told.batch;
    lane.compute_seconds = std::max(lane.compute_seconds, told.compute_seconds);
    lane.out_of_memory = lane.out_of_memory || told.fit == progress::Fit::too_large;
    if (shared()) continue;
    lane.shadow_batch = told.shadow.batch;
    lane.shadow_seconds = told.shadow.seconds;
  }
  return lanes;
}

}  // namespace bimetal::train
