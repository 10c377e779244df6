#include "bimetal/api/job.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/api/session.h"
#include "bimetal/base/error.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/device/device.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/precision/loss_scaler.h"

namespace bimetal {
namespace {

std::optional<std::string> argument_for_worker(int argc, const char* const* argv) {
  constexpr std::string_view kOption = "--worker";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOption)) continue;
    const auto rest = argument.substr(kOption.size());
    if (rest.starts_with('=')) return std::string(rest.substr(1));
    if (!rest.empty()) continue;
    if (i + 1 < argc) return argv[i + 1];
    throw Error(ErrorCode::InvalidArgument, "--worker needs a device, as in --worker cpu");
  }
  return std::nullopt;
}

/// One for all ranks of this machine, or one for each.
std::string variable_for_worker(int local_rank, int local_ranks) {
  const char* variable = std::getenv("BIMETAL_WORKER");
  if (variable == nullptr) return "auto";
  std::vector<std::string> specs = {""};
  for (const char* next = variable; *next != '\0'; ++next) {
    if (*next == ';') {
      specs.emplace_back();
    } else if (*next != ' ') {
      specs.back() += *next;
    }
  }
  if (specs.size() == 1) return specs.front();
  if (std::ssize(specs) == local_ranks) return specs[static_cast<std::size_t>(local_rank)];
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_WORKER is '{}', {} devices, and this machine has {} ranks: give "
                          "one for each, or one for all",
                          variable, specs.size(), local_ranks));
}

}  // namespace

Job init(int argc, const char* const* argv, const InitOptions& options) {
  auto asked = argument_for_worker(argc, argv);
  if (!asked && !options.worker.empty()) asked = options.worker;
  if (asked) job::parse_worker_spec(*asked);  // before anybody waits for this rank
  const auto environment =
      launch::find_rank(comm::Transport::automatic, Deadline::after(options.join_timeout));
  const int local_rank = environment ? environment->local_rank : 0;
  const int local_ranks = environment ? environment->local_world_size : 1;
  const auto worker =
      job::parse_worker_spec(asked ? *asked : variable_for_worker(local_rank, local_ranks));
  if (!environment) {
    return Job(std::make_shared<api::Session>(launch::single_process_world(), worker, 0, 1));
  }
  launch::JoinOptions join;
  join.token = options.token_file.empty() ? net::Token::from_environment()
                                          : net::Token::from_file(options.token_file);
  join.join_timeout = options.join_timeout;
  return Job(std::make_shared<api::Session>(launch::join_world(*environment, join), worker,
                                            local_rank, local_ranks));
}

int Job::rank() const {
  return session_->group().rank();
}

int Job::world_size() const {
  return session_->group().size();
}

torch::Device Job::device() const {
  return session_->device();
}

comm::Group Job::group() const {
  return session_->group();
}

BalancedBatches Job::balanced(std::shared_ptr<const task::Dataset> dataset,
                              BalancedOptions options) const {
  return BalancedBatches(session_->begin(std::move(dataset), options));
}

BalancedBatches Job::balanced(const data::ImageDataset& images, BalancedOptions options) const {
  return balanced(std::make_shared<data::ImageSet>(images, options.dtype), options);
}

const progress::Progress& Job::progress() const {
  return session_->steps().progress();
}

}  // namespace bimetal

namespace bimetal::api {

Session::Session(comm::Group group, const job::WorkerSpec& worker, int local_rank,
                 int local_world_size)
    : group_(std::move(group)), lanes_(group_.size(), group_.rank()), speed_(worker.speed) {
  device::apply_worker_limits(worker, local_world_size);
  device_ = device::select_device(worker, local_rank);
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
  if (steps_) next_epochs_[under_way_] = steps_->next_epoch();
  steps_.reset();
  under_way_ = {dataset->size(), options.seed};
  const auto first = options.epoch > 0 ? options.epoch - 1
                     : options.from    ? 0
                                       : next_epochs_[under_way_];
  steps_ =
      std::make_shared<BalancedSteps>(std::move(dataset), options, first, group_, lanes_, device_);
  return steps_;
}

train::UpdateOptions update_options(precision::Precision precision, double loss_scale,
                                    const optim::GradientLimits& limits) {
  train::UpdateOptions update{.limits = limits};
  if (precision == precision::Precision::float16) {
    job::TrainConfig scale;
    scale.loss_scale = loss_scale;
    update.scaler = precision::scaler_options(scale);
  }
  return update;
}

checkpoint::TrainingState Session::state_after(train::CollectiveUpdate& update) const {
  auto state = steps().state();
  state.step = steps_done_;
  if (const auto& scaler = update.stages().scaler()) state.loss_scaler = scaler->state();
  return state;
}

StartingPoint Session::go_on_with(const checkpoint::TrainingState& state,
                                  train::CollectiveUpdate& update) {
  auto& scaler = update.stages().scaler();
  if (scaler && state.loss_scaler) scaler->restore(*state.loss_scaler);
  steps_done_ = state.step;
  return {.step = state.step, .position = state.position, .seed = state.seed};
}

BalancedSteps& Session::steps() const {
  if (steps_) return *steps_;
  throw Error(ErrorCode::InvalidArgument,
              "no batches yet: DataParallel::step and Job::progress belong into a loop over "
              "Job::balanced");
}

}  // namespace bimetal::api
