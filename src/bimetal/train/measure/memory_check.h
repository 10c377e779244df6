#pragma once
// Whether a run fits into its devices' memory, before it begins, and what it took.

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/measure/memory_measure.h"

namespace bimetal::train {

/// Of one rank's run. Made before there is a model: what the process has by then is its program.
/// Use from one thread.
class MemoryCheck {
 public:
  /// All must outlive it. `elements`: of the task's parameters, where they have been counted; they
  /// are otherwise, and stay there.
  MemoryCheck(comm::Group group, const job::JobConfig& job, const TrainerOptions& options,
              const device::Place& place, const task::Task& task, std::optional<double>& elements);

  /// train.check_memory: whether the run's memory is to be planned. It is where optimizer states
  /// are in shards, a worker has a limit of its own, stages choose who recomputes, or the model is
  /// large enough for that to matter (parameters, gradients and states take more than an eighth of
  /// what some rank has free). Collective.
  bool plans();
  /// What every rank is to measure for a plan of this run: measure_memory(). `batch`: weight of a
  /// global batch.
  MemoryQuestion question(const Computing& on, std::int64_t batch) const;

  /// If it plans(), the memory of ranks that have the whole model. Where it clearly will not fit,
  /// not even in the smallest micro-batches: Error(OutOfMemory) on every rank, with the plan's
  /// advice, or a notice ("warn"). Memory of freed tensors is then kept as far as there is room for
  /// it. `speeds`: of the ranks, where shards are by these and they are known. Collective. Draws
  /// from torch's default generator: seed it afterwards.
  void plan(const Computing& on, std::int64_t batch, std::vector<double> speeds,
            progress::Observer& observer);

  /// A plan of others, by rank, of all of them; what it says is kept of freed memory counts from
  /// now on.
  void take_plan(const std::vector<plan::MemoryUse>& by_rank);
  /// What train.check_memory makes of a job that will not fit: Error(OutOfMemory), or a notice.
  void refuse(const std::string& advice, progress::Observer& observer) const;

  /// By rank, how much of what is in shards was planned. Empty: nothing was.
  const std::vector<double>& shards() const noexcept { return shards_; }

  /// The most that the process has had up to now of memory of its own: buckets that other ranks of
  /// the host have made are theirs, though this process maps them to add to them. Of an
  /// accelerator's own memory since the call before. To be called before training, when none are
  /// mapped yet, and after it.
  void note_peak();

  /// Writes down what was planned and what it was, of every rank. Collective.
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

}  // namespace bimetal::train
