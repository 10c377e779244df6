#include "bimetal/train/graph_watch.h"

#include <utility>

#include "bimetal/base/log.h"

namespace bimetal::train {

void GraphWatch::saw(const torch::Tensor& loss) {
  if (warned_ || !loss.defined() || !loss.requires_grad()) return;
  kept_ = last_[0].expired() ? 0 : kept_ + 1;
  last_[0] = std::exchange(last_[1], weakly(loss.grad_fn()));
  if (kept_ < kInARow) return;
  warned_ = true;
  log(LogLevel::warning,
      "losses keep their autograd graphs after their steps, so that memory grows from step to "
      "step: whoever adds them up or keeps them takes loss.detach(), or loss.item()");
}

}  // namespace bimetal::train
