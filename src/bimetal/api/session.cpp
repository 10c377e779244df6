#include "bimetal/api/session.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_config.h"
#include "bimetal/precision/loss_scaler.h"

namespace bimetal::api {

train::UpdateOptions update_options(const char* whose, precision::Precision precision,
                                    double loss_scale, const optim::GradientLimits& limits) {
  train::UpdateOptions update{.limits = limits};
  if (precision == precision::Precision::float16) {
    job::TrainConfig scale;
    scale.loss_scale = loss_scale;
    update.scaler = precision::scaler_options(scale);
  } else if (loss_scale != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}: loss_scale goes with precision float16 alone", whose));
  }
  return update;
}

namespace {

/// The one that has been made last, until it goes; and the terminate handler from before there was
/// one.
std::atomic<const Session*> told_of_uncaught = nullptr;
std::terminate_handler before_us = nullptr;

[[noreturn]] void tell_and_terminate() {
  const auto* const session = told_of_uncaught.exchange(nullptr);
  if (session != nullptr && std::current_exception()) {
    try {
      or_end_all(session->group(), [] { std::rethrow_exception(std::current_exception()); });
    } catch (...) {
    }
    try {
      // The cause that another rank has told is passed on, too: otherwise this rank would be
      // blamed.
      comm::Group(session->group()).wait_told(Deadline::after(kLastWords));
    } catch (...) {
    }
  }
  if (before_us != nullptr) before_us();
  std::abort();
}

void tell_of_uncaught(const Session* session) {
  told_of_uncaught = session;
  if (std::get_terminate() == tell_and_terminate) return;
  before_us = std::set_terminate(tell_and_terminate);
}

}  // namespace

Session::Session(comm::Group group, Start start)
    : start_(std::move(start)),
      group_(std::move(group)),
      lanes_(group_.size(), group_.rank()),
      exceptions_(std::uncaught_exceptions()) {
  const auto& rank = start_.rank;
  device::apply_worker_limits(start_.worker, rank ? rank->local_world_size : 1);
  device_ = device::select_device(start_.worker, rank ? rank->local_rank : 0);
  tell_of_uncaught(this);
}

Session::~Session() {
  tell_of_uncaught(nullptr);
  if (std::uncaught_exceptions() <= exceptions_) return;
  try {
    group_.abort(fmt::format("rank {}: an exception has ended its program (Job::run tells which)",
                             group_.rank()));
  } catch (...) {
    // The others find this rank gone.
  }
}

std::shared_ptr<BalancedSteps> Session::begin(std::shared_ptr<const task::Dataset> dataset,
                                              const BalancedOptions& options) {
  if (!dataset) throw Error(ErrorCode::InvalidArgument, "Job::balanced needs a data set");
  if (options.epochs < 1 || options.epoch < 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("BalancedOptions::epochs is {} and epoch {}: epochs is at least 1, and "
                            "epoch counts from 1, or is 0 to go on",
                            options.epochs, options.epoch));
  }
  if (!start_.doors.empty() && !is_elastic()) {
    throw Error(ErrorCode::InvalidArgument,
                "BIMETAL_DOOR is set, so this process joins others that train: call "
                "bimetal::elastic, with the loop in the function that it gets");
  }
  if (is_elastic() && !options.weights.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "BalancedOptions::weights has a number for each rank, and in bimetal::elastic "
                "ranks come and go: leave it out");
  }
  if (steps_) {
    steps_->require_no_change();
    next_epochs_[under_way_] = steps_->next_epoch();
  }
  steps_.reset();
  under_way_ = {dataset->size(), options.seed};
  const auto first = options.epoch > 0 ? options.epoch - 1
                     : options.from    ? 0
                                       : next_epochs_[under_way_];
  steps_ = std::make_shared<BalancedSteps>(std::move(dataset), options, first, group_, lanes_,
                                           device_, observer_);
  return steps_;
}

BalancedSteps& Session::steps() const {
  if (steps_) return *steps_;
  throw Error(ErrorCode::InvalidArgument,
              "no batches yet: DataParallel::step and Job::progress belong into a loop over "
              "Job::balanced");
}

progress::Wishes Session::wishes() {
  if (!is_elastic()) return {};
  return {.leave = leaves_, .change = somebody_waits_()};
}

void Session::end_step(const train::StepResult& result, train::CollectiveUpdate& update) {
  auto& stages = update.stages();
  std::optional<double> scale;
  if (const auto& scaler = stages.scaler()) scale = scaler->scale();
  std::vector<int> leaving;
  bool changes = false;
  for (std::size_t rank = 0; rank < result.figures.size(); ++rank) {
    const auto& asked = result.figures[rank].wishes;
    if (asked.leave) leaving.push_back(static_cast<int>(rank));
    changes |= asked.change || asked.leave;
  }
  steps().end_step(result, scale);
  ++steps_done_;
  if (is_elastic()) reached_ = state_after(update);
  if (changes) steps().end_for(std::move(leaving));
  if (const auto text = result.skipped ? stages.notice() : std::nullopt) {
    observer_->on_notice(*text);
  }
  progress::tell_step(steps().progress(), loss_trend_, *observer_);
}

checkpoint::TrainingState Session::state_after(train::CollectiveUpdate& update) const {
  auto state = steps().state();
  state.step = steps_done_;
  if (const auto& scaler = update.stages().scaler()) state.loss_scaler = scaler->state();
  return state;
}

StartingPoint Session::go_on_with(const checkpoint::TrainingState& state,
                                  train::CollectiveUpdate& update) {
  set_reached(state);
  restore_scale(update);
  return {.step = state.step, .position = state.position, .seed = state.seed};
}

void Session::set_reached(checkpoint::TrainingState state) {
  steps_done_ = state.step;
  reached_ = std::move(state);
}

void Session::restore_scale(train::CollectiveUpdate& update) const {
  auto& scaler = update.stages().scaler();
  if (scaler && reached_ && reached_->loss_scaler) scaler->restore(*reached_->loss_scaler);
}

void Session::begin_elastic(std::function<bool()> somebody_waits,
                            const torch::optim::Optimizer* kept) {
  somebody_waits_ = std::move(somebody_waits);
  kept_ = kept;
}

void Session::end_elastic() {
  somebody_waits_ = nullptr;
  kept_ = nullptr;
  doors_.clear();
  start_.doors.clear();
}

void Session::enter(comm::Group group) {
  steps_.reset();
  next_epochs_.clear();
  group_ = std::move(group);
  lanes_ = train::Lanes(group_.size(), group_.rank());
  ++group_number_;
  if (kept_ != nullptr) return;
  steps_done_ = 0;
  reached_.reset();
}

void Session::require_of_these_ranks(int group_number, const char* whose) const {
  if (group_number == group_number_) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("this {0} is of ranks that are not those of now: make {0} in the function "
                  "that bimetal::elastic calls, each time",
                  whose));
}

void Session::require_kept(const torch::optim::Optimizer& optimizer) const {
  if (kept_ == nullptr || kept_ == &optimizer) return;
  throw Error(
      ErrorCode::InvalidArgument,
      "in bimetal::elastic the optimizer has to be the one that it was given: another one's "
      "state would be lost with a worker");
}

void Session::require_not_kept(const char* what) const {
  if (kept_ == nullptr) return;
  throw Error(ErrorCode::Unsupported,
              fmt::format("{} leaves each rank a part of the model, which is lost with the rank: "
                          "give bimetal::elastic the loop alone, and have it begin with resume() "
                          "and save() every few steps",
                          what));
}

void Session::tell(const progress::Evaluation& evaluation) const {
  observer_->on_evaluated(steps_ && steps_->step() > 0 ? steps_->batch().epoch : 0, evaluation);
}

}  // namespace bimetal::api
