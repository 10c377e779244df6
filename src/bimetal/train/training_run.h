#pragma once
// One rank's training run, from its start to its report. Private to this folder: run_training() is
// what others call.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/base/error.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/c10d/island.h"
#include "bimetal/checkpoint/best_checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/batch_feed.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/tensor/tensor_task.h"
#include "bimetal/progress/loss_trend.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/choose_precision.h"
#include "bimetal/train/deterministic.h"
#include "bimetal/train/idle_ranks.h"
#include "bimetal/train/measure/memory_check.h"
#include "bimetal/train/measure/offload_rates.h"
#include "bimetal/train/measure/shadow_batch.h"
#include "bimetal/train/measure/step_probe.h"
#include "bimetal/train/pipeline/stage_run.h"
#include "bimetal/train/profile/step_profiler.h"
#include "bimetal/train/random_states.h"
#include "bimetal/train/rank_journal.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/step.h"
#include "bimetal/train/tensor/replicas.h"
#include "bimetal/train/trained_model.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// Whether a rank has failed by what has become of another.
bool follows_from_a_loss(const Error& error);

/// The whole of one rank's run. Its members are made in the order of their declaration, which is
/// the order of a run's start.
class TrainingRun {
 public:
  TrainingRun(const job::JobConfig& job, comm::Group group, const TrainerOptions& options,
              progress::Observer& observer);
  progress::Report run();

 private:
  ProbeOptions probe_options() const;
  UnitProbe unit_probe() const;
  std::vector<double> weigh_shards();
  parallel::PartWeights weigh_parts() const;
  balance::Balancer measure_devices();
  std::int64_t limit_of_parts() const;
  StepOptions step_options() const;
  parallel::ReplicatedModelOptions parallel_options() const;
  std::shared_ptr<c10d::Island> find_island() const;
  data::EpochSampler sampler() const;
  /// Of a global batch on average: what shares add up to.
  std::int64_t batch_weight() const { return sampler_.mean_weight(job_.train.global_batch); }

  /// No rank need have the memory for a whole model's gradients.
  bool in_pieces() const { return job_.zero.level >= 2; }
  /// Whether a rank's own time says what its share costs: not where others compute it, too.
  bool measures_alone() const { return !in_pieces() && !replicas_.in_parts() && !stages_.mesh; }

  bool next_step();
  progress::ShadowFigures measure_beside_work(const data::BatchFeed::Plan& plan);
  void learn_shares(std::span<const progress::RankFigures> figures);
  void repeat(const data::BatchFeed::Plan& plan, const StepResult& result);
  void record(const data::BatchFeed::Plan& plan, const StepResult& result);
  void introduce_workers();
  void tell_who_ended_it(std::span<const progress::RankFigures> figures);
  void evaluate_now();
  void test_now();
  progress::Evaluation evaluate_with(std::shared_ptr<const task::Dataset> data, std::string name);
  bool save_due() const;
  void save_now();
  void complete_state();
  progress::Report run_steps();
  void rescue(const Error& loss);
  int go_even(comm::Group left);
  void take_error_feedback();
  void go_on_scaling();

  const job::JobConfig& job_;
  const TrainerOptions& options_;
  progress::Observer& observer_;
  comm::Group group_;
  Deterministic deterministic_;
  device::Place place_;
  std::shared_ptr<const task::JobTask> task_;
  /// Once the ranks know that they have the same job.
  std::shared_ptr<const parallel::Mesh> mesh_;
  Replicas replicas_;
  data::EpochSampler sampler_;  ///< at the start of the first epoch
  MemoryCheck memory_;
  RankPrecisions precisions_;
  StagePlan stages_;
  Lanes lanes_;                ///< shares are by lane
  std::vector<double> alone_;  ///< what each rank would do without the others, in any unit
  /// Of those that have shards of the same: their speed, where shards are by that and no steps are
  /// measured.
  std::vector<double> products_;
  balance::Balancer balancer_;  ///< of lanes
  TrainedModel trained_;
  OffloadRates offload_;
  checkpoint::TrainingState& state_;
  std::int64_t planned_steps_;
  parallel::tensor::TensorTask computed_;  ///< the task as this rank's replica computes it
  std::shared_ptr<StageCompute> stage_;    ///< none: each replica has the whole model
  TrainingStep step_;
  data::BatchFeed feed_;
  RankJournal journal_;
  progress::LossTrend loss_trend_;
  ShadowBatch shadow_;
  StepProfiler profiler_;

  progress::WorkerPlace place_of_replica_;
  std::vector<std::string> hosts_;  ///< by replica
  std::int64_t saved_step_, evaluated_step_;
  Stopwatch since_save_;
  std::filesystem::path saved_path_;  ///< rank 0's, of saved_step_
  checkpoint::BestCheckpoint best_;
  DrawsApart apart_;
  IdleRanks idle_;
  std::optional<data::BatchFeed::Plan> current_;  ///< of the step under way
  bool interrupted_ = false;
};

}  // namespace bimetal::train
