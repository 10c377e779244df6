#include "bimetal/train/step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cmath>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/train/out_of_memory.h"

namespace bimetal::train {
namespace {

// Every rank sees the same figures, so every rank throws the same error at the same step.
void require_finite(std::span<const RankFigures> figures, std::int64_t step) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    if (!std::isfinite(figures[rank].loss_sum)) ranks.push_back(static_cast<int>(rank));
  }
  if (ranks.empty()) return;
  throw Error(
      ErrorCode::NotFinite,
      fmt::format("step {}: the loss of rank {} is not finite (NaN or infinity), so nothing "
                  "was updated; lower train.learning_rate or look at the data, then go on "
                  "from the last checkpoint with --resume",
                  step, fmt::join(ranks, ", ")),
      ranks.front());
}

bool all_fit(std::span<const RankFigures> figures) {
  return std::ranges::all_of(figures, [](const auto& rank) { return rank.fit == Fit::fits; });
}

}  // namespace

TrainingStep::TrainingStep(std::shared_ptr<models::Classifier> model,
                           torch::optim::Optimizer& optimizer, comm::Group group,
                           StepOptions options)
    : model_(model),
      optimizer_(optimizer),
      options_(options),
      parallel_(model, group, options.parallel),
      exchange_(group),
      micro_batch_(options.micro_batch, options.device) {}

StepResult TrainingStep::run(std::int64_t step, const data::EpochSampler::Step& plan,
                             const std::function<data::Batch()>& fetch, bool stop_requested) {
  parallel_.begin_step(plan.total);
  const auto rank = static_cast<std::size_t>(parallel_.group().rank());
  auto mine = compute_guarded(plan.counts[rank], fetch);
  mine.stop_requested = stop_requested;
  // Queued behind the gradients: it arrives with them and costs one more small message.
  exchange_.start(mine, Deadline::after(options_.parallel.timeout));
  parallel_.finish_step();
  const Stopwatch waiting;
  StepResult result{.figures = exchange_.wait()};
  result.communicate_seconds = parallel_.communicate_seconds();
  result.wait_seconds = parallel_.wait_seconds() + waiting.seconds();
  result.applied = all_fit(result.figures);
  if (result.applied) {
    require_finite(result.figures, step);
    apply();
  }
  return result;
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
  device::pause_for_speed(options_.speed, watch.seconds() + update_seconds_);
  mine.compute_seconds = watch.seconds() + update_seconds_;
}

void TrainingStep::apply() {
  const Stopwatch watch;
  optimizer_.step();
  update_seconds_ = watch.seconds();
}

}  // namespace bimetal::train
