#pragma once
// This process's place in a job: the first line of a program that trains with Bimetal.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/api/balanced_batches.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/progress_line.h"
#include "bimetal/progress/report.h"

namespace bimetal {
namespace api {
class Session;
}

using progress::Observer;  ///< for Job::watch
using progress::Progress;
using progress::progress_line;
using train::ProfileRequest;  ///< for BalancedOptions::profile

struct InitOptions {
  std::string worker = {};  ///< what this rank computes on: "cpu:threads=1", "cuda:0", "mps"
  std::filesystem::path token_file = {};  ///< between machines; empty: BIMETAL_TOKEN_FILE
  std::chrono::milliseconds join_timeout{std::chrono::seconds(60)};  ///< for all ranks to be there
};

/// A cheap handle; copies are the same job. Use from one thread.
class Job {
 public:
  int rank() const;        ///< from 0; changes where bimetal::elastic goes on with other workers
  int world_size() const;  ///< ranks of the job; changes likewise

  /// What this rank computes on; models wrapped by DataParallel and batches are there.
  torch::Device device() const;

  /// The world group, for collectives of the program's own. Every rank must call the same ones in
  /// the same order.
  comm::Group group() const;

  /// This rank's batches of `dataset`, in shares that follow the ranks' measured speed; every
  /// sample exactly once an epoch over all ranks. For use in a range-for whose body calls
  /// DataParallel::step. A further loop over as many samples with the same seed goes on with the
  /// next epoch, in an order of its own, unless BalancedOptions::epoch says which. Collective:
  /// Error(CallMismatch) names what differs where ranks have other options, or data sets of other
  /// size or weights.
  BalancedBatches balanced(std::shared_ptr<const task::Dataset> dataset,
                           BalancedOptions options = {}) const;
  /// The same of images, in batches of options.dtype.
  BalancedBatches balanced(const data::ImageDataset& images, BalancedOptions options = {}) const;

  /// After a step: loss over the global batch, rate, efficiency, shares. The same on every rank.
  const progress::Progress& progress() const;

  /// From the next loop on `observer` is told, on this rank and from this thread: of each step (a
  /// notice where the loss does not fall, or a step of float16 is skipped), profiles, evaluations,
  /// checkpoints, and workers that come and go. In place of the one before.
  void watch(std::shared_ptr<progress::Observer> observer) const;

  /// Of the last loop, after its steps: what a job's report says of its training and its workers
  /// (docs/report.md), which progress::to_json writes. The same on every rank. Collective.
  progress::Report report() const;

  /// Calls `work`, as the rest of a program: an exception that leaves it on this rank ends the
  /// other ranks with its text, and is thrown on. What happens within steps, evaluations and data
  /// sets does so by itself, and bimetal::elastic does it for the function that it calls.
  void run(const std::function<void()>& work) const;

  /// In bimetal::elastic: this worker leaves after the step under way, and the others go on. Safe
  /// from any thread, and from a handler of SIGTERM.
  void leave() const noexcept;

  /// In bimetal::elastic: where newcomers can join, "HOST:PORT" each, by rank. Any of them is
  /// BIMETAL_DOOR for a newcomer. Empty elsewhere.
  std::vector<std::string> doors() const;

 private:
  explicit Job(std::shared_ptr<api::Session> session) : session_(std::move(session)) {}
  friend Job init(int argc, const char* const* argv, const InitOptions& options);
  friend class DataParallel;
  friend class ElasticLoop;
  friend class Pipeline;
  std::shared_ptr<api::Session> session_;
};

/// Joins the job that this process was started for: by torchrun or whatever else sets RANK,
/// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (with a token between machines), or by
/// mpirun; without them it is a job of one. Call once, before any tensor work; it returns when all
/// ranks have joined. The device is that of "--worker SPEC" among the arguments, else
/// InitOptions::worker, else that of the variable BIMETAL_WORKER, else this machine's best
/// (docs/running.md); other arguments are the program's own. BIMETAL_WORKER may have a spec for
/// each rank of this machine: "cpu:threads=3; cpu:threads=1". With BIMETAL_DOOR the process is a
/// newcomer, which bimetal::elastic takes to the others. Errors: InvalidArgument for bad
/// variables or specs, Unsupported for a device that is not there, those of net::Token::from_file
/// and launch::join_world.
Job init(int argc = 0, const char* const* argv = nullptr, const InitOptions& options = {});

}  // namespace bimetal
