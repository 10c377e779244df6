#pragma once
// This process's place in a job: the first line of a program that trains with Bimetal.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "bimetal/api/balanced_batches.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/progress/observer.h"

namespace bimetal {
namespace api {
class Session;
}

/// A cheap handle; copies are the same job. Use from one thread.
class Job {
 public:
  int rank() const;
  int world_size() const;

  /// What this rank computes on; models wrapped by DataParallel and batches are there.
  torch::Device device() const;

  /// The world group, for collectives of the program's own. Every rank must call the same ones in
  /// the same order.
  comm::Group group() const;

  /// This rank's batches of `dataset`, in shares that follow the ranks' measured speed; every
  /// sample exactly once an epoch over all ranks. For use in a range-for whose body calls
  /// DataParallel::step. A further loop over as many samples with the same seed goes on with the
  /// next epoch, in an order of its own. Collective: Error(CallMismatch) names what differs where
  /// ranks have other options, or data sets of other size or weights.
  BalancedBatches balanced(std::shared_ptr<const task::Dataset> dataset,
                           BalancedOptions options = {}) const;
  /// The same of images, in batches of options.dtype.
  BalancedBatches balanced(const data::ImageDataset& images, BalancedOptions options = {}) const;

  /// After a step: loss over the global batch, rate, efficiency, shares. The same on every rank.
  const progress::Progress& progress() const;

 private:
  explicit Job(std::shared_ptr<api::Session> session) : session_(std::move(session)) {}
  friend Job init(int argc, const char* const* argv);
  friend class DataParallel;
  std::shared_ptr<api::Session> session_;
};

/// Joins the job that this process was started for: by torchrun or whatever else sets RANK,
/// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (with BIMETAL_TOKEN_FILE between machines),
/// or by mpirun; without them it is a job of one. Call once, before any tensor work; it returns
/// when all ranks have joined. The device is that of "--worker SPEC" among the arguments, else of
/// the variable BIMETAL_WORKER, else this machine's best ("cpu:threads=1", "cuda:0", "mps": see
/// job/worker_spec.h); other arguments are the program's own. Errors: InvalidArgument for bad
/// variables or specs, Unsupported for a device that is not there, those of launch::join_world.
Job init(int argc = 0, const char* const* argv = nullptr);

}  // namespace bimetal

namespace bimetal::api {

// What a process's Job handles and trainers share. Private to api.

class Session {
 public:
  /// Applies the worker's limits to this process and picks its device.
  Session(comm::Group group, const job::WorkerSpec& worker, int local_rank, int local_world_size);

  const comm::Group& group() const noexcept { return group_; }
  const torch::Device& device() const noexcept { return device_; }
  double speed() const noexcept { return speed_; }

  /// Begins a loop; the one before it is over. Loops over as many samples with one seed go on with
  /// the epochs of each other. Collective.
  std::shared_ptr<BalancedSteps> begin(std::shared_ptr<const task::Dataset> dataset,
                                       const BalancedOptions& options);

  /// The loop that runs. Error(InvalidArgument) if none was begun.
  BalancedSteps& steps() const;

 private:
  comm::Group group_;
  double speed_;
  torch::Device device_{torch::kCPU};
  std::shared_ptr<BalancedSteps> steps_;
  using Order = std::pair<std::int64_t, std::uint64_t>;  ///< what it depends on: samples and seed
  Order under_way_;                                      ///< that of steps_
  std::map<Order, std::int64_t> next_epochs_;            ///< of loops that are over
};

}  // namespace bimetal::api
