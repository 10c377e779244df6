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

/// What ranks have measured, and how work is shared by those of a stage.
struct MeasuredUnits {
  std::vector<double> seconds;  ///< rank by rank, of each unit: forward and backward
  std::size_t units = 0;
  PartWeights parts = {};
  /// Weights of all ranks, by which those of an uneven stage get its micro-batches; empty: each as
  /// many as it is fast.
  std::vector<double> dealt = {};
  /// Seconds in which a micro-batch crosses each cut, by stage: as CutProblem::send has them.
  std::vector<std::vector<double>> send = {};
};

/// By stage, of each unit: the seconds of the slowest of its ranks, of which each computes its part
/// of the tensors. Where the shape is not even(), what a micro-batch takes of the stage's
/// time while its replicas, each as slow as the slowest of its ranks, compute as many at a time.
std::vector<std::vector<double>> stage_seconds(const MeasuredUnits& measured,
                                               const MeshShape& shape);

// Where to cut a model, by the measured times of its units on each rank.

/// The unit that each piece begins with, of which every stage has `chunks`, so that a step of a
/// pipeline of `shape` is shortest, and each stage fits, as far as `fitting` knows.
/// `micro_batches`: of which `measured` is one, in a step; 0 where that is not known: four for each
/// rank of the pipeline. Errors: cut()'s.
std::vector<std::size_t> measured_cut(const MeasuredUnits& measured, const MeshShape& shape,
                                      int chunks, int micro_batches,
                                      const schedule::FittingEnds& fitting = {});

// Times a rank's computation without its waits for other ranks.

/// A pause for an emulated speed goes by seconds(): with the others' pauses in it, which are waited
/// for in the sums of tensors in parts, pauses would make each other longer with every sum.
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
