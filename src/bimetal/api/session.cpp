#include "bimetal/api/session.h"

#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"

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
