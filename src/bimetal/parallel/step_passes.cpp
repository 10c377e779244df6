#include "bimetal/parallel/step_passes.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"

namespace bimetal::parallel {

void StepPasses::begin(std::int64_t weight, double scale) {
  if (weight <= 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the weight of a step's samples must be positive, not {}", weight));
  }
  if (phase_ != Phase::idle) {
    throw Error(ErrorCode::InvalidArgument,
                "begin_step: the last step has not been ended with finish_step");
  }
  phase_ = Phase::open;
  weight_ = weight;
  scale_ = scale;
  done_ = 0;
}

void StepPasses::require_open() const {
  if (phase_ == Phase::open) return;
  throw Error(ErrorCode::InvalidArgument,
              phase_ == Phase::idle ? "backward: no step was begun with begin_step"
                                    : "backward: this step's backward_last has already been run");
}

void StepPasses::add(bool last) {
  require_open();
  if (last) phase_ = Phase::reducing;
}

void StepPasses::add(const torch::Tensor& loss, std::int64_t part, bool last) {
  require_open();
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(ErrorCode::InvalidArgument, "backward: the loss must be a single number");
  }
  if (part <= 0 || part > weight_ - done_) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("backward: a part of {} after {} in a global batch of weight {}", part,
                            done_, weight_));
  }
  done_ += part;
  if (last) phase_ = Phase::reducing;
}

// part/W enters as the gradient of the loss itself: backward is linear in it, so this is the
// weighted loss's gradient without another pass over anything.
void StepPasses::run_backward(const torch::Tensor& loss, std::int64_t part) const {
  const double counts = scale_ * static_cast<double>(part) / static_cast<double>(weight_);
  loss.backward(torch::full_like(loss, counts));
}

void StepPasses::finish() {
  if (phase_ == Phase::idle) {
    throw Error(ErrorCode::InvalidArgument, "finish_step: no step was begun with begin_step");
  }
  phase_ = Phase::idle;
}

}  // namespace bimetal::parallel
