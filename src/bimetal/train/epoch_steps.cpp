// An epoch's steps, one after the other, and the work between them; checkpoints: epoch_saves.cpp.

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/train/epoch.h"
#include "bimetal/train/rank_journal.h"

namespace bimetal::train {

progress::Report Epoch::train() {
  try {
    return run_steps();
  } catch (const Error& error) {
    // An aborted step's error says who has failed, in that rank's words.
    const bool names = stages_.mesh && error.code() != ErrorCode::Aborted;
    if (!names || !follows_from_a_loss(error)) throw;
    throw parallel::named(error, stages_.mesh->shape(), group_.rank());
  }
}

progress::Report Epoch::run_steps() {
  settle_debts();
  while (!interrupted_ && !change_ && next_step()) {
  }
  read_late();
  memory_.note_peak();
  if (change_) {
    hand_over();
    return {};
  }
  if (!profiler_.finish()) {
    observer_.on_notice(
        "none of the steps that were to be profiled was made: this run ended before, or went on "
        "after them");
  }
  save(Write::now);
  if (!interrupted_) {
    evaluate_now();
    test_now();
  }
  tell_lines();
  auto report = journal_->report(replicas_.group(), state().step, run_.timeout());
  if (const auto text = replicas_.advice(alone_, report.samples_per_s)) observer_.on_notice(*text);
  report.interrupted = interrupted_;
  precisions_.report(report, step_.stages().scaler());
  report.mesh = report_of(stages_, job_.mesh);
  if (run_.best) report.best = run_.best->best();
  if (!replicas_.in_parts()) {
    memory_.report(report);
    offload_.report(group_, report, run_.timeout());
  }
  return report;
}

bool Epoch::next_step() {
  if (!feed_.next() || run_.done()) return false;
  tell_saved(run_.saving.look());
  const auto plan = *feed_.next();
  current_ = plan;
  const auto fetch = [this] {
    auto batch = feed_.take();
    feed_.draw(balancer_.shares());
    return batch;
  };
  const auto asked = wishes();
  const auto step = state().step + 1;
  optim::set_learning_rate(trained_.optimizer(),
                           optim::learning_rate_at(job_.train, step, run_.planned_steps));
  const auto shadow = measure_beside_work(plan);
  profiler_.begin(step);
  const auto result = step_.run(step, plan.samples, fetch, asked, shadow);
  if (profiler_.end(step)) journal_->start_clock();
  tell_earlier(result.earlier);
  if (!result.applied) {
    repeat(plan, result);
    return true;
  }
  record(plan, result);
  if (std::ranges::any_of(result.figures, [](const auto& rank) { return rank.wishes.tell; })) {
    tell_lines();
  }
  note_change(result.figures);
  settle_debts();
  return true;
}

progress::Wishes Epoch::wishes() {
  const auto asks = [](const auto& question) { return question && question(); };
  progress::Wishes wishes{
      .stop = asks(options_.stop_requested),
      .save = save_due(),
      .leave = options_.members != nullptr && asks(options_.leave_requested),
      .change = options_.members != nullptr && options_.members->somebody_waits(),
      .tell = options_.log != nullptr && options_.log->due()};
  // Wishes that count for a replica in parts do not tell which of its ranks made them.
  if (wishes.leave && replicas_.in_parts()) wishes.dismiss = group_.rank();
  if (options_.requests != nullptr && group_.rank() == 0) add_requests(wishes);
  return wishes;
}

/// Requests of watching users to the leading rank that can be met.
void Epoch::add_requests(progress::Wishes& wishes) {
  const auto asked = options_.requests->take();
  wishes.profile = asked.profile;
  if (asked.stop) observer_.on_notice("asked to stop: the job ends after this step");
  wishes.stop |= asked.stop;
  if (asked.save && job_.checkpoint.dir.empty()) {
    observer_.on_notice("asked to save, but the job has no checkpoint.dir");
  } else {
    wishes.save |= asked.save;
  }
  if (asked.sample != 0) show_sample(asked.sample);
  if (asked.leave < 0) return;
  const auto rank = std::ranges::find(numbers_, asked.leave) - numbers_.begin();
  if (options_.members == nullptr || !run_.whole() || rank == std::ssize(numbers_)) {
    observer_.on_notice(
        fmt::format("worker {} was asked to leave: it is gone, or the job cannot go on without it "
                    "(docs/elastic.md)",
                    asked.leave));
    return;
  }
  observer_.on_notice(fmt::format("worker {} was asked to leave after this step", asked.leave));
  wishes.dismiss = static_cast<int>(rank);
}

/// The same, as all ranks have agreed on it.
void Epoch::heed_requests(std::span<const progress::RankFigures> figures,
                          std::vector<int>& leaving) {
  for (const auto& each : figures) {
    const int dismiss = each.wishes.dismiss;
    if (dismiss >= 0 && std::ranges::find(leaving, dismiss) == leaving.end()) {
      leaving.push_back(dismiss);
    }
  }
  const int profile = figures[0].wishes.profile;
  if (profile == 0) return;
  const auto tell = [this](const Profile& done) { observer_.on_profile(times_of(done)); };
  if (!profiler_.ask(state().step, profile, tell)) {
    observer_.on_notice("asked for a profile, but one is under way, or planned");
  }
}

/// The observer is told of a profile, too.
std::optional<ProfileRequest> Epoch::profile_request() const {
  auto request = options_.profile;
  if (!request) return request;
  request->done = [done = request->done, &observer = observer_](const Profile& profile) {
    if (done) done(profile);
    observer.on_profile(times_of(profile));
  };
  return request;
}

/// Notes which rank has asked for an end of the job, or of this epoch.
void Epoch::note_change(std::span<const progress::RankFigures> figures) {
  std::vector<int> leaving;
  bool change = false;
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    const auto& asked = figures[rank].wishes;
    interrupted_ |= asked.stop;
    change |= asked.change;
    if (!asked.leave) continue;
    std::ranges::copy(replicas_.ranks_of(static_cast<int>(rank)), std::back_inserter(leaving));
  }
  heed_requests(figures, leaving);
  change |= !leaving.empty();
  interrupted_ |= std::ssize(leaving) == group_.size();
  if (interrupted_) {
    tell_who_ended_it(figures);
  } else if (change && !run_.done()) {
    change_ = std::move(leaving);
  }
}

/// Does the work between two steps that is still owed. Ranks that go on in another epoch do it
/// there.
void Epoch::settle_debts() {
  if (run_.save_owed || run_.evaluation_owed) read_late();
  if (run_.save_owed) save(Write::beside);
  run_.save_owed = false;
  if (run_.evaluation_owed && !interrupted_) evaluate_now();
  run_.evaluation_owed = false;
}

/// This rank's measurements since the last step. Starts another shadow batch if it has nothing else
/// to do.
progress::ShadowFigures Epoch::measure_beside_work(const data::BatchFeed::Plan& plan) {
  const auto lane = static_cast<std::size_t>(lanes_.mine());
  const auto measured = shadow_.take();
  const auto wanted = measures_alone() ? balancer_.shadows()[lane] : 0;
  if (plan.samples.counts[lane] > 0) {
    shadow_.rest();
  } else if (wanted > 0) {
    shadow_.begin(wanted);
  }
  return measured;
}

/// Hands the progress so far to the run.
void Epoch::commit(std::int64_t step, const data::SamplerPosition& after) {
  state().step = step;
  state().position = after;
  if (const auto& scaler = step_.stages().scaler()) state().loss_scaler = scaler->state();
}

void Epoch::record(const data::BatchFeed::Plan& plan, const StepResult& result) {
  commit(state().step + 1, plan.after);
  const auto every = job_.checkpoint.every_steps;
  const bool by_clock =
      std::ranges::any_of(result.figures, [](const auto& rank) { return rank.wishes.save; });
  run_.save_owed = plan.ends_epoch || by_clock || (every > 0 && state().step % every == 0);
  run_.evaluation_owed = plan.ends_epoch;
  if (result.unread) {
    unread_.emplace(plan, result);
  } else {
    tell(state().step, plan, result);
  }
}

/// Tells the late figures of a step, now that the next one has begun or that all is to be saved.
void Epoch::tell_earlier(const std::optional<EarlierStep>& known) {
  if (!known) return;
  auto [plan, result] = *std::exchange(unread_, std::nullopt);
  result.figures = known->figures;
  result.skipped = known->skipped;
  if (const auto& scaler = step_.stages().scaler()) state().loss_scaler = scaler->state();
  tell(known->number, plan, result);
}

/// Tells the observer and the balancer.
void Epoch::tell(std::int64_t step, const data::BatchFeed::Plan& plan, const StepResult& result) {
  if (const auto text = result.skipped ? step_.stages().notice() : std::nullopt) {
    observer_.on_notice(*text);
  }
  auto done = journal_->add(step, plan, result);
  if (stage_) {
    const auto most = *std::ranges::max_element(plan.samples.counts);
    done.pipeline = {job_.mesh.schedule, stage_->micro_batches(most)};
  }
  done.learning_rate = optim::learning_rate_at(job_.train, step, run_.planned_steps);
  if (const auto& scaler = step_.stages().scaler()) done.loss_scale = scaler->scale();
  progress::tell_step(done, *run_.loss_trend, observer_);
  apart_.look(observer_);
  learn_shares(result.figures);
}

/// Every rank feeds its balancer with the same figures, and so holds the same shares.
void Epoch::learn_shares(std::span<const progress::RankFigures> figures) {
  if (balancer_.observe(lanes_.learnt(figures))) {
    idle_.tell(lanes_.by_rank(balancer_.shares()), job_.train.global_batch, observer_);
  }
}

/// The same samples again, after one rank or several ran out of memory. Only a rank that cannot
/// compute in smaller pieces loses a part of its share.
void Epoch::repeat(const data::BatchFeed::Plan& plan, const StepResult& result) {
  journal_->add_repeated(result);
  const auto too_large = [](const progress::RankFigures& rank) {
    return rank.fit == progress::Fit::too_large;
  };
  if (std::ranges::any_of(result.figures, too_large)) learn_shares(result.figures);
  for (std::size_t rank = 0; rank < result.figures.size(); ++rank) {
    const auto& figures = result.figures[rank];
    if (figures.fit == progress::Fit::fits) continue;
    observer_.on_notice(
        fmt::format("rank {} ran out of memory on {}: {}", rank, counted(figures.batch, "sample"),
                    remedy(figures, balancer_.devices()[lanes_.of(static_cast<int>(rank))].cap)));
  }
  feed_.rewind(plan.before);
  feed_.draw(balancer_.shares());
}

/// Tells who asked for the end. On the machine of the request, whose ranks are numbered from its
/// first on, the launcher has said so.
void Epoch::tell_who_ended_it(std::span<const progress::RankFigures> figures) {
  const auto first_here = static_cast<std::size_t>(group_.rank() - options_.local_rank);
  const auto here = static_cast<std::size_t>(options_.local_world_size);
  for (std::size_t rank = 0; rank < std::min(figures.size(), hosts_.size()); ++rank) {
    if (!figures[rank].wishes.stop) continue;
    if (rank >= first_here && rank < first_here + here) return;
    observer_.on_notice(
        fmt::format("rank {} on {} was told to stop (Ctrl-C there): the job ends after step {}",
                    rank, hosts_[rank], state().step));
    return;
  }
}

/// Between epochs and at the end: with the validation data where there are any.
void Epoch::evaluate_now() {
  const auto validation = run_.task->validation();
  const auto data = validation ? validation : run_.task->evaluation();
  if (!job_.train.evaluate || !data || run_.evaluated_step == state().step) return;
  if (validation && job_.checkpoint.keep_best) finish_save();
  const auto result =
      evaluate_with(data, validation ? progress::kValidationData : progress::kTestData);
  run_.evaluated_step = state().step;
  if (!validation || group_.rank() != 0) return;
  run_.best->offer(run_.saved_step == state().step ? run_.saved_path : "", state().step, result);
}

/// Tests once, at the end, the model that was chosen by other data.
void Epoch::test_now() {
  if (!job_.train.evaluate || !run_.task->validation() || !run_.task->evaluation()) return;
  evaluate_with(run_.task->evaluation(), progress::kTestData);
  const auto best = run_.best ? run_.best->best() : std::nullopt;
  if (!best || best->checkpoint.empty()) return;
  observer_.on_notice(
      fmt::format("best by validation: step {}, kept in {}", best->step, best->checkpoint));
}

progress::Evaluation Epoch::evaluate_with(std::shared_ptr<const task::Dataset> data,
                                          std::string name) {
  const predict::EvaluateOptions how{.device = run_.place.device,
                                     .speed = options_.worker.speed,
                                     .timeout = run_.timeout(),
                                     .waited = [this] { return trained_.waited_seconds(); },
                                     .data = std::move(data),
                                     .computed = [this] { trained_.end_passes(); }};
  const auto rates = alone_rates(balancer_);
  trained_.begin_passes();
  auto result = stage_
                    ? stage_->evaluate(rates, how)
                    : predict::evaluate(computed_, trained_.model(), replicas_.group(), rates, how);
  result.data = std::move(name);
  journal_->add_evaluation(state().step, result);
  observer_.on_evaluated(state().position.epoch + 1, result);
  journal_->start_clock();
  return result;
}

}  // namespace bimetal::train
