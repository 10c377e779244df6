// An epoch's checkpoints: when one is due, and what becomes of it, beside the steps or between
// them.

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/train/epoch.h"
#include "bimetal/train/run.h"

namespace bimetal::train {

void BackgroundSave::end_group() {
  if (group_) end();
}

std::function<void()> BackgroundSave::calling_off() const {
  return [group = group_]() mutable {
    if (group) group.abort("the checkpoint that was being saved is called off");
  };
}

void BackgroundSave::end() {
  if (!writing_.valid()) return;
  calling_off()();
  writing_.wait();
  writing_ = {};
  group_ = {};
}

void BackgroundSave::begin(std::int64_t step, comm::Group group, Write write) {
  step_ = step;
  group_ = std::move(group);
  writing_ = std::async(std::launch::async, std::move(write));
}

std::optional<SavedCheckpoint> BackgroundSave::look() {
  if (!writing_.valid()) return {};
  if (writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return {};
  group_ = {};
  return SavedCheckpoint{step_, writing_.get()};
}

std::optional<SavedCheckpoint> BackgroundSave::finish() {
  if (!writing_.valid()) return {};
  writing_.wait();
  return look();
}

/// By rank 0's clock: ranks that went by their own would not save the same steps.
bool Epoch::save_due() const {
  const auto& checkpoint = job_.checkpoint;
  return group_.rank() == 0 && !checkpoint.dir.empty() && checkpoint.every_minutes > 0 &&
         run_.since_save.seconds() >= 60 * checkpoint.every_minutes;
}

/// Broadcasts buffers from the rank that has seen most samples lately.
void Epoch::share_buffers() {
  const auto shares = balancer_.shares();
  const auto busiest = std::ranges::max_element(shares) - shares.begin();
  step_.broadcast_buffers(static_cast<int>(busiest));
}

void Epoch::tell_saved(const std::optional<SavedCheckpoint>& saved) {
  if (!saved || saved->path.empty()) return;
  if (saved->step == run_.saved_step) run_.saved_path = saved->path;
  observer_.on_checkpoint(saved->path.string(), saved->step);
}

/// All ranks wait together for those that write.
void Epoch::finish_save() {
  if (job_.checkpoint.dir.empty()) return;
  comm::do_watched(
      group_, run_.timeout(), "a checkpoint was being saved",
      [&] { tell_saved(run_.saving.finish()); }, run_.saving.calling_off());
}

void Epoch::save(Write write) {
  finish_save();
  if (run_.saved_step == state().step) return;
  share_buffers();
  trained_.require_finite();
  std::optional<SavedCheckpoint> saved;
  if (!job_.checkpoint.dir.empty()) {
    complete_state();
    state().error_feedback = step_.store().error_feedback();
    run_.saved_path.clear();
    if (auto later = write == Write::beside ? trained_.save_later() : nullptr) {
      run_.saving.begin(state().step, trained_.group_of_saves(), std::move(later));
    } else {
      saved = {state().step, trained_.save()};
    }
    state().error_feedback.clear();
  }
  run_.saved_step = state().step;
  tell_saved(saved);
  run_.since_save = Stopwatch();
  journal_->start_clock();
}

/// But for what compression has not got across.
void Epoch::complete_state() {
  state().shares = balancer_.shares();
  state().torch_rng = checkpoint::random_state();
  // The job's, not the last step's, which follows from the step's number.
  optim::set_learning_rate(trained_.optimizer(), optim::full_rate(job_.train));
}

}  // namespace bimetal::train
