// The work of the process that leads a job while it trains: reports, saves, evaluations, the end.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/parallel/server/link/questions.h"
#include "bimetal/progress/together.h"
#include "bimetal/serving/message.h"
#include "bimetal/train/server/server_process.h"
#include "bimetal/train/server/server_setup.h"

namespace bimetal::train {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};
constexpr double kAsleep = 1;  ///< seconds between two looks: most come a tenth later
/// For workers and servers to read that the job is done.
constexpr std::chrono::seconds kToSayGoodbye{5};

}  // namespace

progress::Report ServerProcess::follow_events() {
  try {
    for (bool going_on = true; going_on;) {
      tell_notes();
      if (run_.trainer.requests != nullptr) heed(run_.trainer.requests->take());
      if (!stopping_ && stop_requested()) {
        stopping_ = true;
        server_.request_pause();
      }
      if (!save_due_ && !stopping_ && by_clock()) {
        save_due_ = true;
        server_.request_pause();
      }
      if (const auto event = next_event()) going_on = handle(*event);
    }
  } catch (const Error& error) {
    server_.abort(error);
    throw;
  }
  predictions_.reset();
  if (!interrupted_) tell_all_that_it_is_over();
  const auto workers = server_.figures();
  const auto repeated = server_.samples_repeated();
  server_.finish(Deadline::after(kToSayGoodbye));
  run_.directory->finish();
  auto report = report_of_servers(journal_, job_.servers, state_.step, workers,
                                  {.updates = static_cast<std::int64_t>(version_) - start_step_,
                                   .samples_repeated = repeated,
                                   .bytes_sent = server_.bytes_sent()});
  report.interrupted = interrupted_;
  return report;
}

/// Heeds the requests of people at the page.
void ServerProcess::heed(const progress::Asked& asked) {
  if (asked.stop) {
    asked_to_stop_ = true;
    observer_.on_notice("asked to stop: the job ends after this step");
  } else if (asked.save && !stopping_) {
    save_due_ = true;
    server_.request_pause();
  }
}

/// This process may have been stopped, and its events be no news any more.
std::optional<ps::Event> ServerProcess::next_event() {
  auto event = server_.next_event(Deadline::after(kLook));
  if (std::exchange(looked_, Stopwatch()).seconds() > kAsleep) require_lead();
  return event;
}

/// A job that is resumed at its end is over at once: servers that are still to come are waited for,
/// workers find it told.
void ServerProcess::tell_all_that_it_is_over() {
  run_.directory->end();
  const auto deadline = Deadline::after(milliseconds_of(job_.cluster.join_timeout_s));
  while (!server_.complete() && !deadline.expired() && !stop_requested()) {
    server_.next_event(Deadline::after(kLook));
  }
}

/// False when the job is done.
bool ServerProcess::handle(const ps::Event& event) {
  if (const auto* joined = std::get_if<ps::JoinedEvent>(&event)) {
    if (!begun_) {
      begun_ = true;
      since_save_ = Stopwatch();
      observer_.on_phase("training");
      journal_.start_clock();
    } else {
      observer_.on_notice(joined->name + " has joined");
    }
  } else if (const auto* step = std::get_if<ps::StepEvent>(&event)) {
    if (!predictions_) serve_predictions();  // all servers are there
    if (has_copies() && run_.server == 0 && !std::exchange(knows_stand_in_, true)) {
      stand_in_ = run_.directory->find(shards());
    }
    state_.step = step->step.number;
    if (step->workers.size() != workers_told_) {
      workers_told_ = step->workers.size();
      observer_.on_workers(places_of(step->workers));
    }
    progress::tell_step(note_step(journal_, *step), loss_trend_, observer_);
  } else if (const auto* told = std::get_if<ps::NoticeEvent>(&event)) {
    observer_.on_notice(told->text);
  } else if (const auto* said = std::get_if<ps::SaidEvent>(&event)) {
    observer_.on_rank_lines(said->worker, said->host, said->lines);
  } else if (const auto* lost = std::get_if<ps::ServerLostEvent>(&event)) {
    if (lost->server == shards()) require_lead();
    run_.directory->withdraw(lost->server);
  } else if (const auto* pause = std::get_if<ps::PauseEvent>(&event)) {
    return on_pause(*pause);
  }
  return true;
}

bool ServerProcess::on_pause(const ps::PauseEvent& pause) {
  journal_.stop_clock();
  version_ = pause.version;
  state_.step = pause.steps_done;
  state_.position = {.epoch = pause.epoch, .offset = pause.offset};
  const bool ends_epoch = pause.offset == 0 && pause.steps_done > start_step_;
  const auto every = job_.checkpoint.every_steps;
  if (stopping_) require_lead();
  interrupted_ = stopping_ && !pause.at_end;
  if (ends_epoch || pause.at_end || stopping_ || save_due_ ||
      (every > 0 && state_.step % every == 0)) {
    save_now();
  }
  save_due_ = false;
  if ((ends_epoch || pause.at_end) && !stopping_) {
    evaluate_now(pause.offset == 0 ? pause.epoch : pause.epoch + 1);
  }
  if (pause.at_end || stopping_) return false;
  journal_.start_clock();
  server_.resume();
  return true;
}

bool ServerProcess::by_clock() const {
  const auto& checkpoint = job_.checkpoint;
  return begun_ && !checkpoint.dir.empty() && checkpoint.every_minutes > 0 &&
         since_save_.seconds() >= 60 * checkpoint.every_minutes;
}

void ServerProcess::save_now() {
  since_save_ = Stopwatch();
  if (saved_step_ == state_.step) return;
  saved_step_ = state_.step;
  const auto states = server_.snapshot(Deadline::after(checkpoint::kFileTimeout));
  assemble_state(states, plan_, model_, *optimizer_);
  checkpoint::require_finite_parameters(alone_, model_, state_.step,
                                        milliseconds_of(job_.parallel.timeout_s));
  if (job_.checkpoint.dir.empty()) return;
  require_right_to_save();
  state_.torch_rng = checkpoint::random_state();
  // Another process may have come to lead, and saved, since the question above: this one may have
  // been stopped while it wrote.
  const auto path =
      checkpoint::save_checkpoint(job_.checkpoint.dir, model_, *optimizer_, state_,
                                  job_.checkpoint.keep, [this](const checkpoint::LastSave& newest) {
                                    require_own(newest);
                                    require_lead();
                                  });
  observer_.on_checkpoint(path.string(), state_.step);
}

void ServerProcess::serve_predictions() {
  if (predictions_failed_) return;
  try {
    const JobParts parts{job_, run_, server_, plan_, facts_};
    predictions_ = std::make_unique<JobPredictions>(parts, *state_.model);
    run_.directory->publish_at(serving::kDirectoryKey, predictions_->endpoint());
  } catch (const Error& error) {
    predictions_.reset();
    predictions_failed_ = true;
    observer_.on_notice(fmt::format("the job serves no predictions: {}", error.what()));
  }
}

/// By the workers, while nothing changes.
void ServerProcess::evaluate_now(std::int64_t epoch) {
  const auto data = task_->evaluation();
  if (!job_.train.evaluate || !data || evaluated_step_ == state_.step) return;
  evaluated_step_ = state_.step;
  server_.evaluate(predict::test_chunks(*data));
  while (!stop_requested()) {
    const auto event = next_event();
    if (!event) continue;
    if (const auto* result = std::get_if<ps::EvaluatedEvent>(&*event)) {
      const auto evaluation = predict::evaluation_of(
          *task_, {.loss = result->loss_sum, .metrics = result->metrics, .weight = result->weight});
      journal_.add_evaluation(state_.step, evaluation);
      observer_.on_evaluated(epoch, evaluation);
      return;
    }
    handle(*event);
  }
}

// A process that led the job may have been stopped, its machine asleep: the others have given it
// up, and server 0's copy leads. Until it has heard of that it believes that it leads, and its
// checkpoints would be older than those that the others have saved since. docs/parameter_server.md,
// "When a server dies".

namespace {

/// A copy out of reach may cost a job with many checkpoints no more than a twentieth of its time.
constexpr std::chrono::seconds kAskAgain{40};

}  // namespace

bool ServerProcess::require_lead() {
  if (!has_copies() || run_.server != 0) return true;
  // The copy says so in the job's store, which may be out of its reach; where it listens it says
  // so as long as it trains.
  const bool given_up = run_.directory->withdrawn(run_.server);
  const auto leader = given_up ? std::nullopt : ask_stand_in();
  if (!given_up && leader.value_or(0) == 0) return leader.has_value();
  throw Error(ErrorCode::Timeout,
              fmt::format("server 0 was not heard of for a while, and server {} leads the job in "
                          "its place",
                          shards()),
              run_.server);
}

/// The server that leads, if it answers. If nothing answers at all, each question takes a while.
std::optional<int> ServerProcess::ask_stand_in() {
  if (!stand_in_ || (!ask_again_.expired() && !stopping_)) return std::nullopt;
  const auto leader =
      ps::who_leads(*stand_in_, fmt::format("server {}", shards()), run_.credentials);
  if (!leader) ask_again_ = Deadline::after(kAskAgain);
  return leader;
}

void ServerProcess::require_right_to_save() {
  if (!has_copies()) return;
  const auto workers = server_.figures();
  const bool any_follows = require_lead() || std::ranges::any_of(workers, [](const auto& worker) {
                             return !worker.lost;
                           });
  if (!any_follows) {
    throw Error(ErrorCode::PeerLost,
                fmt::format("server {} has lost all others, who may train without it: it saves "
                            "nothing, and the last checkpoint is kept",
                            run_.server),
                run_.server);
  }
  require_newest_here();
}

void ServerProcess::require_newest_here() const {
  if (!job_.checkpoint.dir.empty()) require_own(checkpoint::last_save(job_.checkpoint.dir));
}

void ServerProcess::require_own(const checkpoint::LastSave& newest) const {
  if (!has_copies()) return;
  const bool by_another =
      newest.sequence > first_sequence_ && (newest.term > state_.term || newest.step > state_.step);
  if (!by_another) return;
  throw Error(ErrorCode::Timeout,
              fmt::format("{} was saved by a process that leads the job in the place of this one, "
                          "which is at step {}: it saves nothing; go on with --resume {}",
                          newest.path.string(), state_.step, job_.checkpoint.dir),
              run_.server);
}

}  // namespace bimetal::train
