#pragma once
// Deals a step's micro-batches to the replicas of each stage by their measured times.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/progress/worker_summary.h"

namespace bimetal::train {

/// Use from one thread. The same on every rank, as long as all are told the same. The ranks of a
/// replica compute its micro-batches together, each its part of the tensors: their speeds add up,
/// and their time is the slowest one's.
class Dealer {
 public:
  /// `speeds`: as StageOptions has them. Error(InvalidArgument) unless there are none, or one for
  /// each rank and, where they are no beginning to learn from, one of each stage above 0.
  Dealer(std::shared_ptr<const parallel::Mesh> mesh, const std::vector<double>& speeds,
         bool learns);

  /// For a step of micro-batches of so many samples, which learn() will be told of.
  parallel::schedule::Deal deal(std::span<const std::int64_t> samples);
  /// For anything else.
  parallel::schedule::Deal spread(std::span<const std::int64_t> samples) const;

  /// Learns from the ranks' figures of the step dealt last.
  void learn(std::span<const progress::RankFigures> figures);

 private:
  /// The trial of a replica that got nothing.
  struct Trial {
    bool idle = false;  ///< in the step before
    int in_vain = 0;    ///< trials behind which it got nothing again
  };

  std::vector<int> first_ranks() const;
  double& seconds_of(int rank);
  void require_weights() const;
  void learn_of(int rank, double seen);
  void doubt(int rank);

  std::shared_ptr<const parallel::Mesh> mesh_;
  parallel::schedule::ReplicaSeconds seconds_;  ///< of a sample; of ranks of mesh.pipeline()
  bool learns_;
  std::vector<std::int64_t> dealt_;  ///< samples by rank
  std::vector<Trial> trials_;        ///< by rank; each replica's first speaks for all of its ranks
};

}  // namespace bimetal::train
