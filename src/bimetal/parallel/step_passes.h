#pragma once
// The backward passes of one step: their order, and the part of the step's weight of each.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

namespace bimetal::parallel {

/// Calls in another order throw Error(InvalidArgument). Use from one thread.
class StepPasses {
 public:
  /// Error(InvalidArgument) unless weight > 0.
  void begin(std::int64_t weight, double scale);
  /// Before a pass; `last`: none follows. Error(InvalidArgument) for a loss that is not one number
  /// and for parts that come to more than the step's weight.
  void add(const torch::Tensor& loss, std::int64_t part, bool last);
  /// Before one that somebody else runs.
  void add(bool last);
  /// scale / weight.
  double factor() const noexcept { return scale_ / static_cast<double>(weight_); }
  /// Of scale · loss · part / weight.
  void run_backward(const torch::Tensor& loss, std::int64_t part) const;
  void finish();

  /// Between begin() and finish().
  bool in_step() const noexcept { return phase_ != Phase::idle; }

 private:
  void require_open() const;

  enum class Phase {
    idle,      ///< outside of a step
    open,      ///< begin to the last pass
    reducing,  ///< the last pass to finish
  };

  Phase phase_ = Phase::idle;
  std::int64_t weight_ = 1;
  std::int64_t done_ = 0;  ///< of it
  double scale_ = 1;
};

}  // namespace bimetal::parallel
