#pragma once
// Times what a stage computes, without what it waits for other ranks meanwhile.

#include "bimetal/base/stopwatch.h"
#include "bimetal/parallel/pipeline/runner.h"

namespace bimetal::parallel::pipeline {

/// A pause for an emulated speed goes by seconds(): with the others' pauses in it, which are waited
/// for in the sums of tensors in parts, pauses would make each other longer.
class ComputeWatch {
 public:
  explicit ComputeWatch(const RunnerOptions& options) : options_(options), before_(so_far()) {}

  double waited() const { return so_far() - before_; }
  double seconds() const { return watch_.seconds() - waited(); }

 private:
  double so_far() const { return options_.waited ? options_.waited() : 0; }

  const RunnerOptions& options_;
  const double before_;
  const Stopwatch watch_;
};

}  // namespace bimetal::parallel::pipeline
