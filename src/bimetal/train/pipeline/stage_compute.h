#pragma once
// A pipeline stage's computation of its lane's share of a batch: in micro-batches, together with
// the other stages. It takes the place of Compute (compute.h), which is for ranks with the whole
// model.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/precision/precision.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/segments.h"
#include "bimetal/task/task.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {

// Deals a step's micro-batches to the replicas of each stage by their measured times.

/// Use from one thread. The same on every rank, as long as all are told the same. The ranks of a
/// replica compute its micro-batches together, each its part of the tensors: their speeds add up,
/// and their time is the slowest one's.
class Dealer {
 public:
  /// `speeds`: as StageOptions has them. Error(InvalidArgument) unless there are none, or one for
  /// each rank and, where they are no beginning to learn from, one of each stage above 0.
  Dealer(std::shared_ptr<const parallel::Mesh> mesh, const std::vector<double>& speeds,
         bool learns);

  /// For a step of micro-batches of so many samples, which learn() will be told of.
  parallel::schedule::Deal deal(std::span<const std::int64_t> samples);
  /// For anything else.
  parallel::schedule::Deal spread(std::span<const std::int64_t> samples) const;

  /// Learns from the ranks' figures of the step dealt last.
  void learn(std::span<const progress::RankFigures> figures);

 private:
  /// The trial of a replica that got nothing.
  struct Trial {
    bool idle = false;  ///< in the step before
    int in_vain = 0;    ///< trials behind which it got nothing again
  };

  std::vector<int> first_ranks() const;
  double& seconds_of(int rank);
  void require_weights() const;
  void learn_of(int rank, double seen);
  void doubt(int rank);

  std::shared_ptr<const parallel::Mesh> mesh_;
  parallel::schedule::ReplicaSeconds seconds_;  ///< of a sample; of ranks of mesh.pipeline()
  bool learns_;
  std::vector<std::int64_t> dealt_;  ///< samples by rank
  std::vector<Trial> trials_;        ///< by rank; each replica's first speaks for all of its ranks
};

struct StageOptions {
  torch::Device device{torch::kCPU};
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  precision::Precision precision = precision::Precision::float32;
  bool channels_last = false;      ///< the memory format of the stage's convolutions
  std::string recompute = "none";  ///< as train.recompute
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;                  ///< pieces of the model per stage
  std::int64_t micro_batches = 0;  ///< as mesh.micro_batches
  std::int64_t micro_batch = 0;    ///< as train.micro_batch
  /// Each rank's samples a second in its stage, 0 if not known. If stages have their own numbers of
  /// replicas, micro-batches are dealt to a stage's replicas by this. Empty: they are equals.
  std::vector<double> speeds = {};
  bool learns_speeds = false;  ///< from steps, for which these are a start; else any unit will do
  /// Those that compute the stage's units together, each with its part; nullptr: they are whole.
  std::shared_ptr<const parallel::tensor::GroupRanks> tensor = nullptr;
  parallel::pipeline::ActivationCompression compression = {};  ///< as compression.activations
  c10d::VendorLibrary vendor = {};                             ///< as RunnerOptions has it
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

/// The most samples that any rank of the mesh would compute at once. Collective.
MicroBatch agreed_limit(const parallel::Mesh& mesh, const task::Task& task,
                        const StageOptions& options);

/// The number of micro-batches for so many samples of a pipeline, until memory requires more.
int micro_batches_of(const StageOptions& options, const parallel::MeshShape& shape,
                     const MicroBatch& limit, std::int64_t samples);

/// Use from one thread. All ranks of a replica make the same calls.
class StageCompute final : public ShareCompute {
 public:
  /// `task` must outlive it: a TensorTask where tensors are in parts. Collective over the mesh: all
  /// ranks take the smallest micro-batches that any asks for. Errors: InvalidArgument for
  /// micro-batches that the schedule cannot run.
  StageCompute(const task::Task& task, std::shared_ptr<const parallel::Mesh> mesh,
               parallel::pipeline::StageModel stage,
               std::shared_ptr<parallel::pipeline::StageSums> sums, StageOptions options);

  /// The loss is that of the last stage, and there of its first tensor rank. If a rank runs out of
  /// memory, all go through the step to its end, so that nobody waits in vain, and that rank
  /// reports it. With recompute "auto" it will first compute activations again.
  Compute::Outcome try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                           const task::Draws& draws) override;

  /// After a step in which some rank has run out of memory, all take smaller micro-batches. After
  /// other steps it learns the replicas' speeds. Collective.
  void learn(std::span<const progress::RankFigures> figures) override;

  /// As predict::evaluate. Collective.
  progress::Evaluation evaluate(std::span<const double> speeds,
                                const predict::EvaluateOptions& options);

  /// The number of micro-batches in which a share of so many samples goes through the stages.
  int micro_batches(std::int64_t samples) const;

 private:
  int asked_micro_batches(std::int64_t samples) const;
  bool begin_recomputing();
  parallel::pipeline::StageWork work_on(const task::Values& share,
                                        std::span<const std::int64_t> begins,
                                        const task::Draws& draws,
                                        const std::exception_ptr& missing);

  const task::Task& task_;
  std::shared_ptr<const parallel::Mesh> mesh_;
  parallel::pipeline::StageModel stage_;
  std::shared_ptr<parallel::pipeline::StageSums> sums_;
  const StageOptions options_;
  const precision::Products products_;
  MicroBatch limit_;
  int finer_ = 1;  ///< times as many micro-batches, since some rank was out of memory
  Dealer dealer_;
  std::vector<task::Segments> segments_;
  parallel::pipeline::Runner runner_;
};

}  // namespace bimetal::train
