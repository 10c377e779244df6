#pragma once
// Whether a run fits into its devices' memory, before it begins, and the memory that it took.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/optim/offload/state_file.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/measure/memory_measure.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {

/// The memory check of one rank's run. Made before there is a model: the memory that the process
/// has by then is its program's. Use from one thread.
class MemoryCheck {
 public:
  /// All must outlive it. `elements`: those of the task's parameters. If they have not been
  /// counted, they are counted and kept there.
  MemoryCheck(comm::Group group, const job::JobConfig& job, const TrainerOptions& options,
              const device::Place& place, const task::Task& task, std::optional<double>& elements);

  /// train.check_memory: whether the run's memory is to be planned. It is where optimizer states
  /// are in shards, a worker has a limit of its own, stages choose who recomputes, or the model is
  /// large enough for that to matter (parameters, gradients and states take more than an eighth of
  /// what some rank has free). Collective.
  bool plans();
  /// The measurements that every rank makes for a plan of this run: measure_memory(). `batch`:
  /// weight of a global batch.
  MemoryQuestion question(const Computing& on, std::int64_t batch) const;

  /// If it plans(), the memory of ranks that have the whole model. If it clearly will not fit, not
  /// even in the smallest micro-batches: Error(OutOfMemory) on every rank, with the plan's advice,
  /// or a notice ("warn"). Memory of freed tensors is then kept as far as there is room for it.
  /// `speeds`: those of the ranks, if shards go by speed and speeds are known. Collective. Draws
  /// from torch's default generator: seed it afterwards.
  void plan(const Computing& on, std::int64_t batch, std::vector<double> speeds,
            progress::Observer& observer);

  /// Takes a plan of others, by rank, for all of them. The freed memory that it lets a rank keep
  /// counts from now on.
  void take_plan(const std::vector<plan::MemoryUse>& by_rank);
  /// The answer of train.check_memory to a job that will not fit: Error(OutOfMemory), or a notice.
  void refuse(const std::string& advice, progress::Observer& observer) const;

  /// By rank, the planned fraction of the shards. Empty: nothing was planned.
  const std::vector<double>& shards() const noexcept { return shards_; }

  /// Notes the most memory of its own that the process has had up to now. Buckets that other ranks
  /// of the host have made are theirs, though this process maps them to add to them. For an
  /// accelerator's own memory, it is the peak since the last call. Call it before training, when
  /// none are mapped yet, and after it.
  void note_peak();

  /// Reports the planned and the actual memory of every rank. Collective.
  void report(progress::Report& report);

 private:
  comm::Group group_;
  const job::JobConfig& job_;
  const TrainerOptions& options_;
  const device::Place& place_;
  const task::Task& task_;
  std::optional<double>& elements_;
  const plan::RankMemory room_;
  std::vector<progress::MemoryReport> plan_;  ///< by rank; empty: there is none
  std::vector<double> shards_;
  double peak_ = 0;
  bool begun_ = false;
};

// How fast a run's offloaded states and parameters go to and from their disk, beside the disk's
// rates for a plain copy.

/// The rates of one rank's run. Use from one thread.
class OffloadRates {
 public:
  /// If this rank has anything on a disk, and a report will say so, it copies as many bytes there
  /// and back, 256 MiB at most, in about a second. Ranks that share a disk do so at the same time,
  /// as they use it later.
  OffloadRates(const job::JobConfig& job, TrainedModel& trained, progress::Observer& observer);

  /// From here on it counts.
  void start();

  /// Puts every rank's figures into the report, whose workers are the group's ranks. Collective.
  void report(comm::Group group, progress::Report& report, std::chrono::milliseconds timeout) const;

 private:
  std::optional<optim::DiskTraffic> states() const;
  std::optional<optim::DiskTraffic> parameters() const;

  const job::JobConfig& job_;
  TrainedModel& trained_;
  optim::PlainCopy copy_;
  std::optional<optim::DiskTraffic> states_before_, parameters_before_;
};

}  // namespace bimetal::train
