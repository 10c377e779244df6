#pragma once
// Times a rank's computation without its waits for other ranks.

#include <algorithm>
#include <functional>
#include <utility>

#include "bimetal/base/stopwatch.h"

namespace bimetal::parallel::pipeline {

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
