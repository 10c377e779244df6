#include "bimetal/api/job.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/device/device.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal {
namespace {

std::string worker_spec(int argc, const char* const* argv) {
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
  const char* variable = std::getenv("BIMETAL_WORKER");
  return variable ? variable : "auto";
}

}  // namespace

Job init(int argc, const char* const* argv) {
  const auto worker = job::parse_worker_spec(worker_spec(argc, argv));
  const auto environment = launch::find_rank(comm::Transport::automatic,
                                             Deadline::after(launch::JoinOptions{}.join_timeout));
  if (!environment) {
    return Job(std::make_shared<api::Session>(launch::single_process_world(), worker, 0, 1));
  }
  launch::JoinOptions options;
  options.token = net::Token::from_environment();
  return Job(std::make_shared<api::Session>(launch::join_world(*environment, options), worker,
                                            environment->local_rank,
                                            environment->local_world_size));
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
    : group_(std::move(group)), speed_(worker.speed) {
  device::apply_worker_limits(worker, local_world_size);
  device_ = device::select_device(worker, local_rank);
}

std::shared_ptr<BalancedSteps> Session::begin(std::shared_ptr<const task::Dataset> dataset,
                                              const BalancedOptions& options) {
  if (!dataset) throw Error(ErrorCode::InvalidArgument, "Job::balanced needs a data set");
  if (steps_) next_epochs_[under_way_] = steps_->next_epoch();
  steps_.reset();
  under_way_ = {dataset->size(), options.seed};
  steps_ = std::make_shared<BalancedSteps>(std::move(dataset), options, next_epochs_[under_way_],
                                           group_, device_);
  return steps_;
}

BalancedSteps& Session::steps() const {
  if (steps_) return *steps_;
  throw Error(ErrorCode::InvalidArgument,
              "no batches yet: DataParallel::step and Job::progress belong into a loop over "
              "Job::balanced");
}

}  // namespace bimetal::api
