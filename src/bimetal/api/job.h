#pragma once
// This process's place in a job, the first line of a program that trains with Bimetal, and its
// batches, whose sizes follow the measured speed of all ranks.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/api/task.h"
#include "bimetal/balance/balancer.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/data/sampler.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/progress.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/profile/profile.h"

namespace bimetal {
namespace api {
class BalancedSteps;
class Session;
}  // namespace api

using progress::Observer;  ///< for Job::watch
using progress::Progress;
using progress::progress_line;
using train::ProfileRequest;  ///< for BalancedOptions::profile

/// Where a checkpoint left off (DataParallel::resume).
struct StartingPoint {
  std::int64_t step = 0;                ///< optimizer steps done
  data::SamplerPosition position = {};  ///< the next sample of the order
  std::uint64_t seed = 1;               ///< of that order
};

/// The samples that a loop over Job::balanced visits, and how its batches are dealt out. The same
/// on every rank.
struct BalancedOptions {
  std::int64_t global_batch = 512;  ///< samples per optimizer step over all ranks
  std::int64_t epochs = 1;          ///< that this loop visits
  /// The first of them, from 1: for who counts epochs in a loop around this one. 0: goes on where
  /// the loop before this one ended, or with the first.
  std::int64_t epoch = 0;
  /// Leaves out samples that were visited before: the loop visits the rest of these epochs, and
  /// goes on counting steps. Epochs that are over are empty.
  std::optional<StartingPoint> from = {};
  std::int64_t steps = 0;                ///< > 0: stop after this many optimizer steps
  std::uint64_t seed = 1;                ///< of the order of samples
  torch::Dtype dtype = torch::kFloat32;  ///< of images (data::ImageDataset); others have their own
  /// How a batch is shared: parallel.balance, docs/balance.md.
  balance::Policy balance = balance::Policy::Auto;
  std::vector<double> weights = {};  ///< for Policy::Fixed, one per rank
  /// So many samples that follow each other go to one rank together: those that the model
  /// normalises with each other (task::GroupedBatchNorm).
  std::int64_t sample_group = 1;
  /// Steps of this loop under libtorch's profiler, on all ranks: docs/profile.md.
  std::optional<train::ProfileRequest> profile = {};
};

/// This rank's share of one global batch, on the job's device. It may be empty, for a rank that is
/// too slow to help; the loss of an empty batch is ignored, but the step must still be called.
struct Batch {
  task::Values values;     ///< as the data set gives them
  torch::Tensor x, y;      ///< the first and the last of them: of images [b, C, H, W] and [b]
  std::int64_t epoch = 0;  ///< from 1, and on through later loops with the same seed
  std::int64_t step = 0;   ///< from 1, in each loop; on from BalancedOptions::from
};

/// A single pass: begin() continues where the last one ended. Use from one thread.
class BalancedBatches {
 public:
  /// An input iterator: one pass.
  class Iterator {
   public:
    /// As the standard library asks for it, like the next ones.
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;                ///< what it gives
    using difference_type = std::ptrdiff_t;  ///< of no use: one pass
    using pointer = Batch*;                  ///< to the batch
    using reference = Batch&;                ///< valid until the next one

    /// This rank's batch, which lives until the iterator goes on.
    Batch& operator*() const;
    /// Error(InvalidArgument) unless DataParallel::step has been called for the batch before.
    Iterator& operator++();
    /// Whether the loop is over: on all ranks alike.
    bool operator==(std::default_sentinel_t) const;

   private:
    friend class BalancedBatches;
    explicit Iterator(api::BalancedSteps* steps) : steps_(steps) {}
    api::BalancedSteps* steps_;
  };

  /// Hands out the first batch. Errors: the data set's; those of the iterator's ++.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }  ///< for a range-for

 private:
  friend class Job;
  explicit BalancedBatches(std::shared_ptr<api::BalancedSteps> steps) : steps_(std::move(steps)) {}
  std::shared_ptr<api::BalancedSteps> steps_;
};

/// How this process comes into its job.
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

  /// This rank's device. Models wrapped by DataParallel, and batches, are there.
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

  /// From the next loop on `observer` is told of each step, profiles, evaluations, checkpoints, and
  /// workers that come and go, on this rank and from this thread. It gets a notice if the loss does
  /// not fall, or a step of float16 is skipped. In place of the one before.
  void watch(std::shared_ptr<progress::Observer> observer) const;

  /// The report on the last loop's training and workers, once its steps are done (docs/report.md).
  /// progress::to_json writes it. The same on every rank. Collective.
  progress::Report report() const;

  /// Calls `work`, as the rest of a program: an exception that leaves it on this rank ends the
  /// other ranks with its text, and is thrown on. Steps, evaluations and data sets do the same by
  /// themselves, and bimetal::elastic does it for the function that it calls.
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

/// Joins the job that this process was started for: by torchrun or another launcher that sets RANK,
/// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (with a token between machines), or by
/// mpirun. Without them it is a job of one. Call once, before any tensor work; it returns when all
/// ranks have joined. The device is that of "--worker SPEC" among the arguments, else
/// InitOptions::worker, else that of the variable BIMETAL_WORKER, else this machine's best
/// (docs/running.md); other arguments are the program's own. BIMETAL_WORKER may have a spec for
/// each rank of this machine: "cpu:threads=3; cpu:threads=1". With BIMETAL_DOOR the process is a
/// newcomer, which bimetal::elastic takes to the others. Errors: InvalidArgument for bad variables
/// or specs, Unsupported for a device that is not there, those of net::Token::from_file and
/// launch::join_world.
Job init(int argc = 0, const char* const* argv = nullptr, const InitOptions& options = {});

}  // namespace bimetal

namespace bimetal::data {

/// The training set of load_dataset ("fashion-mnist", "mnist"), the same on all ranks. Each finds
/// it in `path` (a folder or URL) or the usual places, or gets it from a rank that has it
/// (docs/data.md). Collective. Errors: those of train::share_dataset and load_dataset; after one
/// the job's group is unusable.
ImageDataset idx_images(const std::string& name, const Job& job,
                        const std::filesystem::path& path = {});

}  // namespace bimetal::data
