#pragma once
// A training among ranks that stay the same: an epoch of membership, not of the data. Private to
// this folder and its tests: others call run_training().

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/membership/membership.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/train/choose_precision.h"
#include "bimetal/train/libtorch_state.h"
#include "bimetal/train/measure/memory_check.h"
#include "bimetal/train/measure/step_probe.h"
#include "bimetal/train/pipeline/stage_run.h"
#include "bimetal/train/profile/step_profiler.h"
#include "bimetal/train/rank_journal.h"
#include "bimetal/train/replicas.h"
#include "bimetal/train/run.h"
#include "bimetal/train/step.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {

using membership::follows_from_a_loss;

/// The objects that one rank of a group makes to go on with its run, and throws away with the
/// group: mesh, shares, the store of parameters, the step, the feed of batches, figures. Its
/// members are made in the order of their declaration, which is the order of an epoch's start.
///
///   Run run(job, …);
///   Epoch(run, group_of_three).train();  // or next_step() as often as wanted, then hand_over()
///   Epoch(run, group_of_two).train();    // goes on behind the last step: no sample twice or never
///
/// Every step that next_step() has returned from is in the run, if every rank has the whole model:
/// parameters, optimizer, the sampler's place, loss scale. The next epoch draws shares anew. State
/// that ranks keep for each other is lost with them unless all have called hand_over(): shards
/// (ZeRO), parts of a mesh, buffers that differ (parallel.exact = "relaxed") and the error feedback
/// of compression. (After a loss, an epoch of the remaining ranks gets shards from their copies,
/// see rescue(), or goes back to the last checkpoint. First all come to the same step, as in
/// go_even().)
class Epoch {
 public:
  /// Goes on with `run` among the ranks of `group`, each of which has one at the same step; the
  /// first epoch begins it. Measures the devices as far as they are not known. All is collective.
  /// Errors: those of run_training().
  Epoch(Run& run, comm::Group group);
  ~Epoch();
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  /// Until the job is done, or somebody wants it to stop; evaluates and saves then. Or, with
  /// TrainerOptions::members, until members come or leave, which change() tells: the report is
  /// empty then, and the run handed over.
  progress::Report train();

  /// The ranks that leave, if train() has ended for them; nothing if it has ended for another
  /// reason.
  const std::optional<std::vector<int>>& change() const noexcept { return change_; }

  /// As Group::abort(), for those of its mesh, too: who waits in one of them for a rank that
  /// another one has failed on would else not hear of it.
  void abort(const std::string& reason);

  /// After the loss of a rank, if zero.copies = 2 keeps each shard twice: the remaining ranks save
  /// the state of all, and the run goes on from there. `left`: a group of theirs. False if there
  /// are no copies. Collective among them; errors are told, and thrown.
  bool rescue(int lost, const comm::Group& left);

  /// False, and nothing is done, when the job is done.
  bool next_step();

  /// Between steps, before the group ends: the run gets what ranks keep for each other, by a
  /// checkpoint where the model is in shards or parts and the job has a folder for them.
  void hand_over();

 private:
  bool find_memory_format();
  ProbeOptions probe_options() const;
  Computing computing() const;
  std::vector<double> weigh_shards();
  parallel::PartWeights weigh_parts() const;
  balance::Balancer measure_devices();
  std::int64_t limit_of_parts() const;
  StepOptions step_options();
  parallel::ReplicatedModelOptions parallel_options() const;
  c10d::FormIsland form_island() const;
  checkpoint::TrainingState& state() const { return run_.learnt.state; }

  /// No rank need have the memory for a whole model's gradients.
  bool in_pieces() const { return job_.zero.level >= 2; }
  /// Whether a rank's own time says what its share costs: not where others compute it, too.
  bool measures_alone() const { return !in_pieces() && !replicas_.in_parts() && !stages_.mesh; }

  void begin();
  void introduce_workers();
  std::vector<int> numbers_of_replicas() const;
  progress::Report run_steps();
  progress::ShadowFigures measure_beside_work(const data::BatchFeed::Plan& plan);
  void learn_shares(std::span<const progress::RankFigures> figures);
  void repeat(const data::BatchFeed::Plan& plan, const StepResult& result);
  void commit(std::int64_t step, const data::SamplerPosition& after);
  void record(const data::BatchFeed::Plan& plan, const StepResult& result);
  void tell(std::int64_t step, const data::BatchFeed::Plan& plan, const StepResult& result);
  void tell_earlier(const std::optional<EarlierStep>& known);
  void read_late() { tell_earlier(step_.read_late()); }
  void tell_who_ended_it(std::span<const progress::RankFigures> figures);
  void evaluate_now();
  void test_now();
  progress::Evaluation evaluate_with(std::shared_ptr<const task::Dataset> data, std::string name);
  bool save_due() const;
  progress::Wishes wishes();
  void add_requests(progress::Wishes& wishes);
  void heed_requests(std::span<const progress::RankFigures> figures, std::vector<int>& leaving);
  std::optional<ProfileRequest> profile_request() const;
  void note_change(std::span<const progress::RankFigures> figures);
  void settle_debts();
  void tell_lines();
  void show_sample(std::uint64_t draw);
  void share_buffers();
  /// At once, or from copies while the next steps are made.
  enum class Write { now, beside };
  void save(Write write);
  void finish_save();
  void tell_saved(const std::optional<SavedCheckpoint>& saved);
  void complete_state();
  int go_even(comm::Group left);
  void take_error_feedback();

  Run& run_;
  const job::JobConfig& job_;  ///< the run's, as are the next two
  const TrainerOptions& options_;
  progress::Observer& observer_;
  comm::Group group_;
  std::shared_ptr<const parallel::Mesh> mesh_;
  Replicas replicas_;
  MemoryCheck memory_;
  RankPrecisions precisions_;
  const bool channels_last_;
  StagePlan stages_;
  Lanes lanes_;                ///< shares are by lane
  std::vector<double> alone_;  ///< each rank's speed without the others, in any unit
  /// The speeds of ranks that have shards of the same, where shards go by speed and no steps are
  /// measured.
  std::vector<double> products_;
  balance::Balancer balancer_;  ///< of lanes
  TrainedModel trained_;
  OffloadRates offload_;
  parallel::tensor::TensorTask computed_;  ///< the task as this rank's replica computes it
  std::shared_ptr<StageCompute> stage_;    ///< none: each replica has the whole model
  TrainingStep step_;
  data::BatchFeed feed_;
  ShadowBatch shadow_;
  StepProfiler profiler_;
  std::vector<int> numbers_;            ///< of the replicas, among the members
  std::optional<RankJournal> journal_;  ///< once the members have numbers
  std::vector<std::string> hosts_;      ///< by replica
  DrawsApart apart_;
  IdleRanks idle_;
  std::optional<data::BatchFeed::Plan> current_;  ///< of the step under way
  /// The last step, where it is not known yet what became of it.
  std::optional<std::pair<data::BatchFeed::Plan, StepResult>> unread_;
  bool interrupted_ = false;
  std::optional<std::vector<int>> change_;
};

}  // namespace bimetal::train
