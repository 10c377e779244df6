#pragma once
// The second half of every step, which all ranks do together: the gradients are summed, the ranks
// agree that the step is sound, and only then the parameters change.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <span>

#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/progress/rank_figures.h"

namespace bimetal::train {

struct StepResult {
  std::span<const progress::RankFigures> figures;  ///< one per rank; valid until the next step
  bool applied =
      false;  ///< false: a share did not fit, nothing changed, the step is to be repeated
  double communicate_seconds = 0;
  double wait_seconds = 0;
};

/// Use from one thread.
class CollectiveUpdate {
 public:
  /// `parallel` must outlive it.
  CollectiveUpdate(parallel::ReplicatedModel& parallel, std::chrono::milliseconds timeout);

  /// Ends step number `step`, in which this rank has done `mine`, whose totals of all steps so far
  /// are filled in here. Collective. Errors: NotFinite, on
  /// every rank and with the parameters unchanged, naming the step and the ranks whose loss is no
  /// number; the fabric's.
  StepResult run(std::int64_t step, progress::RankFigures mine, torch::optim::Optimizer& optimizer);

  /// Seconds of the last update by the optimizer; a lone device would spend them too.
  double update_seconds() const noexcept { return update_seconds_; }

 private:
  parallel::ReplicatedModel& parallel_;
  std::chrono::milliseconds timeout_;
  progress::FigureExchange exchange_;
  double update_seconds_ = 0;
  double communicate_seconds_ = 0, wait_seconds_ = 0;  // of all steps so far
};

}  // namespace bimetal::train
