#include "bimetal/train/collective_update.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/host.h"
#include "bimetal/optim/fused.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/train/profile/phase.h"

namespace bimetal::train {
namespace {

// Every rank sees the same figures, so every rank throws the same error at the same step.
/// `updated`: the part that was already updated, which the error drops; "": nothing.
void require_finite(std::span<const progress::RankFigures> figures, std::int64_t step,
                    std::string_view updated) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    if (!std::isfinite(figures[rank].loss_sum)) ranks.push_back(static_cast<int>(rank));
  }
  if (ranks.empty()) return;
  throw Error(
      ErrorCode::NotFinite,
      fmt::format("step {}: the loss of rank {} is not finite (NaN or infinity), so {}; a lower "
                  "learning rate or a look at the data may help. The last checkpoint is kept",
                  step, fmt::join(ranks, ", "), updated.empty() ? "nothing was updated" : updated),
      ranks.front());
}

/// If the optimizer had other tensors than those with gradients, nothing would move, or other ranks
/// would not hear of the change.
void require_trained(const torch::optim::Optimizer& optimizer,
                     const parallel::ParameterStore& store) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& tensor : group.params()) {
      if (!tensor.requires_grad() || store.facts_of(tensor).trained) continue;
      throw Error(
          ErrorCode::InvalidArgument,
          fmt::format("the optimizer has a tensor of shape [{}] that gets no gradient of a "
                      "step: make it of {}",
                      fmt::join(tensor.sizes(), ", "),
                      store.in_shards() ? "ShardedModel::pieces(), not of the model's parameters()"
                                        : "the trained parameters that the model had when its "
                                          "ParameterStore was made"));
    }
  }
}

bool all_fit(std::span<const progress::RankFigures> figures) {
  return std::ranges::all_of(figures,
                             [](const auto& rank) { return rank.fit == progress::Fit::fits; });
}

}  // namespace

// A rank without samples has its gradients ready later than its figures, so the two must not share
// one order of calls.
CollectiveUpdate::CollectiveUpdate(parallel::Sync sync, std::chrono::milliseconds timeout,
                                   const UpdateOptions& options)
    : sync_(std::move(sync)),
      timeout_(timeout),
      exchange_(comm::group_of_its_own(sync_.group())),
      stages_(options, sync_.in_parts() ? Norms::OfShards : Norms::OfWhole) {}

/// Asking the system takes as long as a very small step.
double CollectiveUpdate::memory_now() {
  constexpr double kAskEvery = 1.0;
  if (memory_bytes_ > 0 && since_memory_.seconds() < kAskEvery) return memory_bytes_;
  since_memory_ = Stopwatch();
  memory_bytes_ = static_cast<double>(device::process_memory().resident_bytes);
  return memory_bytes_;
}

/// Takes a rank's figures of its share, once its device has come to it. Returns for how long of its
/// wait for the sums the device was still at the share.
double CollectiveUpdate::learn_share(progress::RankFigures& mine, const Unread& unread,
                                     const device::LateNumbers& losses) {
  const auto numbers = losses.take(Deadline::after(timeout_));
  mine.loss_sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
  // The device is through with the update before, too.
  if (updating_) update_seconds_ = std::max(update_seconds_, updating_->seconds());
  const double computed = std::max(unread.launch_seconds, unread.timer.seconds());
  mine.compute_seconds = computed + update_seconds_;
  return computed - unread.launch_seconds;
}

StepResult CollectiveUpdate::run(std::int64_t step, progress::RankFigures mine,
                                 torch::optim::Optimizer& optimizer, std::optional<Unread> unread) {
  require_trained(optimizer, sync_.store());
  mine.communicate_seconds = communicate_seconds_;
  mine.wait_seconds = wait_seconds_;
  mine.bytes_sent = sync_.group().bytes_sent();
  mine.memory_bytes = memory_now();
  const bool alone = unread && sync_.group().size() == 1;
  std::optional<device::LateNumbers> losses;
  if (unread && !(alone && decides_there())) losses.emplace(std::vector{unread->losses});
  const auto shown = parallel::numbers_of(statistics_, sync_.group());
  double behind = 0;
  const auto start = [&] {
    if (losses) behind = learn_share(mine, *unread, *losses);
    exchange_.start(sync_.as_one(mine), Deadline::after(timeout_));
  };
  // Travels beside the gradients and has arrived by the time that they have, unless it is to tell
  // of them.
  // With copies, a rank that knows the figures also knows that every rank has all that the update
  // needs.
  const bool copies = sync_.store().keeps_copies();
  const bool ahead = !copies && (!stages_.needs_agreement() || (decides_there() && !alone));
  if (ahead && !losses) start();
  in_phase(Phase::kWait,
           [&] { sync_.sum_gradients(ahead && losses ? std::function<void()>(start) : nullptr); });
  const auto leaves_out = [&] {
    const auto* const skippable = dynamic_cast<const optim::SkippableUpdate*>(&optimizer);
    return skippable != nullptr && skippable->can_skip();
  };
  if (decides_there() && (!stages_.scaler() || leaves_out())) {
    if (!ahead) start();
    // Before anybody updates: a rank that is lost then takes nothing of the step with it.
    parallel::sum_over_ranks(statistics_, shown, sync_.group(), timeout_);
    return run_late(step, optimizer, alone ? std::exchange(unread, std::nullopt) : std::nullopt,
                    behind);
  }
  const auto earlier = read_late();
  if (unread && !losses) losses.emplace(std::vector{unread->losses});
  auto* const merged = dynamic_cast<optim::MergedUpdate*>(&optimizer);
  stages_.set_factors(merged != nullptr ? Factors::Deferred : Factors::Applied);
  const Stopwatch inspecting;
  const auto gradients = optim::gradients_of(optimizer);
  const auto counted = optim::gradients_of(
      optimizer, [this](const torch::Tensor& parameter) { return sync_.counts(parameter); });
  in_phase(Phase::kUpdate, [&] {
    const auto seen = stages_.look(gradients, counted);
    if (seen.defined()) mine.gradient_norm = seen.item<double>();  // the one wait for the device
  });
  const double inspect_seconds = inspecting.seconds();
  parallel::sum_over_ranks(statistics_, shown, sync_.group(), timeout_);  // as above
  complete_ = step;
  if (!ahead) {
    start();
  } else if (stages_.needs_agreement()) {
    exchange_.wait();  // of what did not tell of the norm
    exchange_.start(mine, Deadline::after(timeout_));
  }
  if (unread && !updating_) updating_.emplace(unread->losses.device());
  auto result = run_now(step, optimizer, inspect_seconds, behind);
  result.earlier = earlier;
  return result;
}

/// All ranks' figures of the step; without `applied` it is dropped.
void CollectiveUpdate::wait_for_all(StepResult& result, double behind) {
  const Stopwatch waiting;
  result.figures = in_phase(Phase::kWait, [&] { return exchange_.wait(); });
  result.communicate_seconds = sync_.communicate_seconds();
  // A wait for sums of gradients that were not there yet is a wait for the device.
  const double summing = std::max(0.0, sync_.wait_seconds() - behind);
  result.wait_seconds = summing + waiting.seconds() + std::exchange(waited_before_, 0);
  communicate_seconds_ += result.communicate_seconds;
  wait_seconds_ += result.wait_seconds;
  result.applied = all_fit(result.figures);
  if (!result.applied) parallel::discard(statistics_);
}

/// The host knows all of the step.
StepResult CollectiveUpdate::run_now(std::int64_t step, torch::optim::Optimizer& optimizer,
                                     double inspect_seconds, double behind) {
  StepResult result;
  wait_for_all(result, behind);
  if (!result.applied) return result;
  require_finite(result.figures, step,
                 sync_.store().updates_in_backward()
                     ? "what backward has updated by it is dropped (zero.update)"
                     : "");
  const Stopwatch updating;
  const Phase phase(Phase::kUpdate);
  if (updating_) updating_->begin();
  result.skipped = !update(step, result.figures, optimizer);
  if (updating_) updating_->end();
  const double waited = result.skipped ? 0 : spread_update();
  update_seconds_ = inspect_seconds + updating.seconds() - waited;
  result.wait_seconds += waited;
  result.communicate_seconds += waited;
  wait_seconds_ += waited;
  communicate_seconds_ += waited;
  return result;
}

/// Nobody waits for the device, except for its results of a step ago: by then it has the next
/// step's work. `alone`: for a rank alone, whose share is not known yet either.
StepResult CollectiveUpdate::run_late(std::int64_t step, torch::optim::Optimizer& optimizer,
                                      std::optional<Unread> alone, double behind) {
  constexpr std::size_t kBehind = 1;
  StepResult result;
  wait_for_all(result, behind);
  // With several ranks all figures are there: an error of the last step comes first.
  if (!alone || !result.applied) result.earlier = read_late();
  if (!result.applied) return result;
  require_finite(result.figures, step, "");
  result.unread = true;
  const Stopwatch launching;
  {
    const Phase phase(Phase::kUpdate);
    if (!updating_) updating_.emplace(*decides_on_);
    updating_->begin();
    const auto gradients = optim::gradients_of(optimizer);
    const auto counted = optim::gradients_of(
        optimizer, [this](const torch::Tensor& parameter) { return sync_.counts(parameter); });
    const auto there = stages_.decide_there(gradients, counted);
    auto* const skippable = dynamic_cast<optim::SkippableUpdate*>(&optimizer);
    if (there.skipped.defined()) skippable->skip_where(there.skipped);
    optimizer.step();
    for (const auto& one : statistics_) task::merge(one, there.skipped);
    sync_.spread_update();
    updating_->end();
    std::vector<torch::Tensor> numbers;
    if (alone) numbers.push_back(alone->losses);
    if (there.norm.defined()) numbers.push_back(there.norm);
    late_.push_back(
        {.step = {.number = step, .figures = {result.figures.begin(), result.figures.end()}},
         .updating =
             alone ? *std::exchange(updating_, std::nullopt) : device::StreamTimer(*decides_on_),
         .alone = std::move(alone),
         .numbers = device::LateNumbers(numbers),
         .with_norm = there.norm.defined(),
         .skippable = there.skipped.defined() ? skippable : nullptr});
  }
  update_seconds_ = launching.seconds();
  complete_ = updated_ = step;
  if (late_.size() > kBehind) result.earlier = read_late();
  return result;
}

std::optional<EarlierStep> CollectiveUpdate::read_late() {
  if (late_.empty()) return std::nullopt;
  auto late = std::move(late_.front());
  late_.pop_front();
  auto numbers =
      in_phase(Phase::kUpdate, [&] { return late.numbers.take(Deadline::after(timeout_)); });
  auto& figures = late.step.figures;
  if (late.with_norm) {
    for (auto& rank : figures) rank.gradient_norm = numbers.back();
    numbers.pop_back();
  }
  if (late.alone) {
    figures.front().loss_sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
    figures.front().compute_seconds =
        std::max(late.alone->launch_seconds, late.alone->timer.seconds()) + late.updating.seconds();
  }
  require_finite(figures, late.step.number, "what it has updated is dropped");
  if (stages_.needs_agreement()) {
    late.step.skipped = !stages_.learn(late.step.number, figures);
    if (late.step.skipped) late.skippable->forget_step();
  }
  return std::move(late.step);
}

/// How long this rank has waited for others to have updated theirs.
double CollectiveUpdate::spread_update() {
  const double before = sync_.wait_seconds();
  sync_.spread_update();
  return sync_.wait_seconds() - before;
}

/// This rank's own part; false: the step is skipped.
bool CollectiveUpdate::update(std::int64_t step, std::span<const progress::RankFigures> figures,
                              torch::optim::Optimizer& optimizer) {
  const bool applied = stages_.decide(step, figures, optim::gradients_of(optimizer));
  if (applied) {
    auto* const merged = dynamic_cast<optim::MergedUpdate*>(&optimizer);
    if (merged != nullptr) merged->set_gradient_factor(stages_.factor());
    optimizer.step();
    for (const auto& one : statistics_) task::merge(one);
  } else {
    parallel::discard(statistics_);
  }
  updated_ = step;
  return applied;
}

void CollectiveUpdate::catch_up(std::int64_t step, std::span<const double> numbers,
                                torch::optim::Optimizer& optimizer) {
  if (complete_ != step) {
    throw Error(ErrorCode::PeerLost,
                fmt::format("another rank has made step {}, whose gradients are not here", step));
  }
  update(step, exchange_.take(numbers), optimizer);
}

}  // namespace bimetal::train
