#pragma once
// Who computes which part of a step's samples: each rank its own, or, where a model is cut, the
// ranks of a replica one part together, and where stages have replicas of their own number all
// ranks the whole of it. Such a part is a lane: samplers and balancers deal with lanes.

#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/progress/rank_figures.h"

namespace bimetal::train {

/// A value; the same on every rank but for mine().
class Lanes {
 public:
  Lanes(const parallel::MeshShape& shape, int rank);
  /// A lane for each rank.
  Lanes(int ranks, int rank) : Lanes(parallel::MeshShape{.replicas = ranks}, rank) {}

  int count() const noexcept { return shape_.even() ? shape_.replicas : 1; }
  int ranks() const noexcept { return shape_.ranks(); }
  int mine() const noexcept { return of(rank_); }
  int of(int rank) const noexcept {
    return shape_.even() ? parallel::place_of(shape_, rank).replica : 0;
  }
  /// Several ranks compute one.
  bool shared() const noexcept { return ranks() > count(); }

  /// What this rank says that it has computed of samples of its lane: of `weight`, which its stages
  /// share evenly, and their ranks, so that all together each is counted once.
  std::int64_t counted(std::int64_t weight) const;

  /// Of each rank what its lane has.
  std::vector<std::int64_t> by_rank(const std::vector<std::int64_t>& by_lane) const;

  /// What ranks have told of a step, by lane: one is as fast as the slowest of its ranks.
  std::vector<balance::StepFigures> learnt(std::span<const progress::RankFigures> figures) const;

 private:
  parallel::MeshShape shape_;
  int rank_;
};

}  // namespace bimetal::train
