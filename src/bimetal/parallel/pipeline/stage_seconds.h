#pragma once
// The times of a model's units on each stage of a pipeline, from their times on every rank. Pure.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/schedule/cut.h"

namespace bimetal::parallel::pipeline {

/// The ranks' measurements, and how the ranks of a stage share work.
struct MeasuredUnits {
  std::vector<double> seconds;  ///< by rank and unit: forward and backward
  std::size_t units = 0;
  PartWeights parts = {};
  /// Weights of all ranks, by which those of an uneven stage get its micro-batches; empty: each as
  /// many as it is fast.
  std::vector<double> dealt = {};
  /// Seconds in which a micro-batch crosses each cut, by stage: as CutProblem::send has them.
  std::vector<std::vector<double>> send = {};
};

/// By stage and unit: the seconds of the stage's slowest rank, where each rank computes its part of
/// the tensors. If the shape is not even(), a micro-batch takes so much of the stage's time: its
/// replicas, each as slow as the slowest of its ranks, compute as many at a time.
std::vector<std::vector<double>> stage_seconds(const MeasuredUnits& measured,
                                               const MeshShape& shape);

// Chooses where to cut a model, by the measured times of its units on each rank.

/// The first unit of each piece, with `chunks` pieces on every stage. The cut makes a step of a
/// pipeline of `shape` shortest, and each stage fits, as far as `fitting` knows. `micro_batches`:
/// the number in a step, of which `measured` is one; 0 if it is not known: four for each rank of
/// the pipeline. Errors: cut()'s.
std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      int chunks, int micro_batches,
                                      const schedule::FittingEnds& fitting = {});

// Times a rank's computation without its waits for other ranks.

/// A pause for an emulated speed goes by seconds(), without waits. In the sums of tensors in parts
/// a rank waits for the others' pauses: counted, these would make pauses longer with every sum.
class ComputeWatch {
 public:
  /// `waited`: seconds of waiting so far. May be left out.
  explicit ComputeWatch(std::function<double()> waited)
      : waited_(std::move(waited)), before_(so_far()) {}

  double seconds() const { return std::max(0.0, watch_.seconds() - waited()); }
  double waited() const { return so_far() - before_; }

 private:
  double so_far() const { return waited_ ? waited_() : 0; }

  const std::function<double()> waited_;
  const double before_;
  const Stopwatch watch_;
};

}  // namespace bimetal::parallel::pipeline
