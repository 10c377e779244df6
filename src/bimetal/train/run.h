#pragma once
// The part of one rank's training that outlives a change of members. Private to this folder and its
// tests: others call run_training().

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "bimetal/balance/cost_model.h"
#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/sampler.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_config.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/journal.h"
#include "bimetal/progress/observer.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/rank_journal.h"
#include "bimetal/train/trained_model.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

// A checkpoint that is written beside the steps which follow it. Private to this folder.

struct SavedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path path = {};  ///< rank 0's
};

/// One at a time. Use from one thread.
class BackgroundSave {
 public:
  using Write = std::function<std::filesystem::path()>;

  BackgroundSave() = default;
  ~BackgroundSave() { end(); }
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Calls `write` on a thread of its own. `group`: that it alone uses, or none. None must be under
  /// way.
  void begin(std::int64_t step, comm::Group group, Write write);

  /// Once it is there, the first time that it is asked; throws what `write` has thrown.
  std::optional<SavedCheckpoint> look();

  /// Waits for it. The checkpoint, unless look() has given it.
  std::optional<SavedCheckpoint> finish();

  /// Ends the group of the save that is under way, on all ranks; finish() throws then. From any
  /// thread, while this object changes or is gone.
  std::function<void()> calling_off() const;

  /// As the group ends: what needs it is called off, on all ranks.
  void end_group();

 private:
  void end();

  std::int64_t step_ = 0;
  comm::Group group_;
  std::future<std::filesystem::path> writing_;
};

/// Epochs (epoch.h) are made of a run and a group, one after the other, and leave the state here
/// that the next one goes on with. It is the same on every rank, except for members that are called
/// this rank's. A rank that is new to a run that has begun needs learnt, journal, saved_step and
/// evaluated_step from another one. Use from one thread.
struct Run {
  /// `of`: the job of this rank's worker; for a rank that comes later it may be `settled`, too.
  /// `data`: as from load_shared_task(). All references must outlive the run.
  Run(const job::JobConfig& of, job::JobConfig settled, const TrainerOptions& how,
      progress::Observer& to, const device::Place& where,
      std::shared_ptr<const task::JobTask> data);

  /// Once the first epoch knows where the model begins; does nothing after that.
  void begin();
  /// The part of it that a newcomer does with the others' plan.
  void start_journal();
  /// Called when this rank becomes rank 0 of an epoch: makes the state that it keeps for all.
  void lead();
  /// Whether every rank has the whole model in any epoch, so that one may be lost and takes nothing
  /// with it.
  bool whole() const {
    return asked.zero.level == 0 && asked.mesh.stages == 1 && asked.mesh.tensor == 1;
  }

  bool done() const { return learnt.begun && learnt.state.step >= planned_steps; }
  /// A sampler at the next step's first sample.
  data::EpochSampler sampler_here() const;
  /// The average weight of a global batch, which the shares add up to.
  std::int64_t batch_weight() const { return sampler.mean_weight(job.train.global_batch); }
  std::chrono::milliseconds timeout() const;

  const job::JobConfig& asked;
  job::JobConfig job;  ///< with numbers for each "auto" of its mesh: for the ranks of an epoch
  const TrainerOptions& options;
  progress::Observer& observer;
  device::Place place;  ///< this rank's
  std::shared_ptr<const task::JobTask> task;
  data::EpochSampler sampler;  ///< at the start of the first epoch of the data
  Learnt learnt;

  // Facts on this rank's device and on the model, so that a later epoch need not measure them
  // again.
  std::optional<precision::Precision> precision;
  std::optional<bool> channels_last;
  balance::CostModel cost;
  std::optional<double> elements;  ///< of the model's parameters

  // History.
  std::int64_t planned_steps = 0;
  std::optional<RunJournal> journal;
  std::optional<progress::LossTrend> loss_trend;
  int number = -1;  ///< this rank's among the members; -1: it has none yet

  // Checkpoints and evaluations.
  bool save_owed = false, evaluation_owed = false;  ///< after the last step, and not done yet
  std::int64_t saved_step = 0, evaluated_step = -1;
  Stopwatch since_save;
  std::filesystem::path saved_path;                ///< rank 0's, of saved_step
  std::optional<checkpoint::BestCheckpoint> best;  ///< rank 0's
  BackgroundSave saving;
};

}  // namespace bimetal::train
