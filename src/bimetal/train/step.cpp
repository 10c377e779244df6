#include "bimetal/train/step.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/train/out_of_memory.h"

namespace bimetal::train {

TrainingStep::TrainingStep(std::shared_ptr<models::Classifier> model,
                           torch::optim::Optimizer& optimizer, comm::Group group,
                           StepOptions options)
    : model_(model),
      optimizer_(optimizer),
      options_(options),
      parallel_(model, group, options.parallel),
      update_(parallel_, options.parallel.timeout),
      micro_batch_(options.micro_batch, options.device) {}

StepResult TrainingStep::run(std::int64_t step, const data::EpochSampler::Step& plan,
                             const std::function<data::Batch()>& fetch, bool stop_requested) {
  parallel_.begin_step(plan.total);
  const auto rank = static_cast<std::size_t>(parallel_.group().rank());
  auto mine = compute_guarded(plan.counts[rank], fetch);
  mine.stop_requested = stop_requested;
  return update_.run(step, mine, optimizer_);
}

RankFigures TrainingStep::compute_guarded(std::int64_t share,
                                          const std::function<data::Batch()>& fetch) {
  RankFigures mine{.batch = share};
  bool fetched = false;
  try {
    const auto batch = fetch();
    fetched = true;
    if (share > 0) compute(batch, mine);
    return mine;
  } catch (...) {
    if (!is_out_of_memory(std::current_exception())) throw;
  }
  // Outside the handler: the exception and the half-built graph have been freed by now.
  release_cached_memory(options_.device);
  mine.loss_sum = 0;
  mine.fit = fetched && micro_batch_.halve(share) ? Fit::try_smaller_pieces : Fit::too_large;
  return mine;
}

void TrainingStep::compute(const data::Batch& batch, RankFigures& mine) {
  const Stopwatch watch;
  std::vector<std::pair<torch::Tensor, std::int64_t>> losses;
  micro_batch_.for_each(batch, [&](const data::Batch& piece, bool last) {
    const auto samples = piece.y.size(0);
    const auto loss = torch::nn::functional::cross_entropy(model_->forward(piece.x), piece.y);
    if (last) {
      parallel_.backward_last(loss, samples);
    } else {
      parallel_.backward(loss, samples);
    }
    losses.emplace_back(loss.detach(), samples);
  });
  device::synchronize(options_.device);
  for (const auto& [loss, samples] : losses) {
    mine.loss_sum += loss.item<double>() * static_cast<double>(samples);
  }
  // The previous step's update belongs to what this device spends on a step.
  device::pause_for_speed(options_.speed, watch.seconds() + update_.update_seconds());
  mine.compute_seconds = watch.seconds() + update_.update_seconds();
}

}  // namespace bimetal::train
