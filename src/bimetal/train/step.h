#pragma once
// One optimizer step on one rank: compute its share, sum the gradients over the fabric, agree with
// all ranks that the step is sound, and only then change the parameters.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset.h"
#include "bimetal/data/sampler.h"
#include "bimetal/models/registry.h"
#include "bimetal/parallel/data/data_parallel.h"
#include "bimetal/train/micro_batch.h"
#include "bimetal/train/rank_figures.h"

namespace bimetal::train {

struct StepOptions {
  torch::Device device{torch::kCPU};
  double speed = 1.0;            ///< emulated: see device::pause_for_speed
  std::int64_t micro_batch = 0;  ///< as train.micro_batch
  parallel::DataParallelOptions parallel;
};

struct StepResult {
  std::span<const RankFigures> figures;  ///< one per rank; valid until the next run()
  bool applied =
      false;  ///< false: a share did not fit, nothing changed, the step is to be repeated
  double communicate_seconds = 0;
  double wait_seconds = 0;
};

/// Use from one thread.
class TrainingStep {
 public:
  /// Collective: parallel::DataParallel's constructor compares and broadcasts the parameters.
  TrainingStep(std::shared_ptr<models::Classifier> model, torch::optim::Optimizer& optimizer,
               comm::Group group, StepOptions options);

  /// Runs step number `step` over the samples of `plan`, the same on every rank. `fetch` gives this
  /// rank's batch (0 samples: it takes part without computing). Collective.
  ///
  /// When a share does not fit into its device's memory, that rank first computes it in smaller
  /// micro-batches (Fit::try_smaller_pieces); when they are as small as they get, or the batch
  /// itself cannot be held, its share must shrink (Fit::too_large). Either way every rank discards
  /// the step. Errors: NotFinite naming the step and the ranks, with the parameters unchanged; the
  /// fabric's; whatever else `fetch` or the model throws, on this rank alone.
  StepResult run(std::int64_t step, const data::EpochSampler::Step& plan,
                 const std::function<data::Batch()>& fetch, bool stop_requested);

  /// Copies the buffers of rank `root` (running means and the like) to all. Collective.
  void broadcast_buffers(int root) { parallel_.broadcast_buffers(root); }

 private:
  RankFigures compute_guarded(std::int64_t share, const std::function<data::Batch()>& fetch);
  void compute(const data::Batch& batch, RankFigures& mine);
  void apply();

  std::shared_ptr<models::Classifier> model_;
  torch::optim::Optimizer& optimizer_;
  StepOptions options_;
  parallel::DataParallel parallel_;
  FigureExchange exchange_;
  MicroBatch micro_batch_;
  double update_seconds_ = 0;  // of the previous step: a lone device would spend it too
};

}  // namespace bimetal::train
