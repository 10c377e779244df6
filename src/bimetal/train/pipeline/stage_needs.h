#pragma once
// The memory that each rank of a pipeline needs for a model that is to be cut into stages.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/memory/memory_use.h"

namespace bimetal::train {

/// Samples of a step that go through one pipeline, if all replicas get as many.
std::int64_t samples_of_pipeline(const parallel::MeshShape& shape, std::int64_t global_batch);

/// By the planner's formulas (plan/memory/memory_use.h), from every rank's measurements.
class StageNeeds {
 public:
  /// `measured`: that of all ranks of `shape`, from measure_memory(). A replica computes a step of
  /// `job` in `micro_batches`. Tensors are whole.
  StageNeeds(plan::MemoryInput measured, const job::JobConfig& job,
             const parallel::MeshShape& shape, int micro_batches);

  /// For a cut that takes no more than this part of each rank's room.
  parallel::schedule::FittingEnds within(double part) const;

  /// By rank, for a model whose pieces begin with these units.
  std::vector<plan::MemoryUse> planned(const std::vector<std::size_t>& begins) const;

  /// The same where these stages compute activations again, as far as train.recompute = "auto"
  /// leaves that to them; of no stage it does by itself. Empty: none.
  StageNeeds recomputing(std::vector<bool> stages) const;
  /// The same if all do.
  StageNeeds recomputing() const;
  /// Whether it is left to any.
  bool may_recompute() const;
  /// Those in which some rank has no room for these units' activations otherwise, and saves some.
  std::vector<bool> must_recompute(const std::vector<std::size_t>& begins) const;

  /// The same in micro-batches of one sample, which training comes to by itself where memory fails.
  StageNeeds at_least() const;

  /// The ranks that lack memory even so, by more than a plan may be wrong, and advice for them.
  std::optional<std::string> lacking(const std::vector<std::size_t>& begins) const;

 private:
  int ranks() const { return shape_.ranks(); }
  const plan::RankMemory& rank(int number) const;
  const plan::Room& room_of(int number) const;
  std::vector<double> shards_of(const job::ZeroConfig& zero) const;
  plan::InFlight in_flight(int stage) const;
  plan::StageLoad load_of(int number) const;
  plan::MemoryUse use_of(int number, const std::vector<std::size_t>& begins) const;

  std::shared_ptr<const plan::MemoryInput> measured_;
  std::vector<plan::Room> rooms_;  ///< by rank
  parallel::MeshShape shape_;
  parallel::schedule::Kind kind_;
  std::int64_t samples_;  ///< of a step that go through a pipeline
  int micro_batches_;
  int chunks_;
  bool cuts_given_;
  std::vector<double> shards_;        ///< by rank, the fraction of its stage's replicas'
                                      ///< shards
  std::vector<bool> recompute_ = {};  ///< by stage; empty: as asked for
};

}  // namespace bimetal::train
