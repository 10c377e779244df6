#pragma once
// Decides where a job's model is cut into stages.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/plan/link_probe.h"
#include "bimetal/progress/observer.h"
#include "bimetal/task/task.h"
#include "bimetal/train/pipeline/stage_needs.h"

namespace bimetal::train {

struct ChosenCuts {
  std::vector<std::size_t> begins;  ///< unit that each piece begins with
  parallel::PartWeights parts = {};
  /// For each rank, the samples a second of its stage; empty if they were not measured.
  std::vector<double> speeds = {};
  std::vector<bool> recompute = {};  ///< by stage; empty: nobody was asked
};

/// The facts that a cut depends on.
struct CutInput {
  /// Measured times and outputs of units on every rank. Those of a rank that could not measure are
  /// not there, and none are if cuts_by_speed() says no.
  std::vector<plan::ModelFacts> facts = {};
  torch::Dtype dtype = torch::kFloat32;  ///< of activations between stages
  std::int64_t at_once = 1;              ///< samples of a micro-batch
  int micro_batches = 1;                 ///< of a step
  const StageNeeds* needs = nullptr;     ///< nullptr: nothing is known of memory
};

/// Whether it goes by the speed of ranks where such a job's model is cut.
bool cuts_by_speed(const job::JobConfig& job, const parallel::MeshShape& shape);

/// The cuts of the model that `job` cuts into stages. Either mesh.cuts gives them, or they make the
/// pipeline's step shortest, by the times of units on each stage's devices and by the links between
/// stages. If possible, each stage fits into memory. If not all ranks could measure, elements of
/// parameters stand for time. With train.recompute = "auto" stages that have no room otherwise
/// compute activations again. The parts of tensors are as part_weights() has them. The same on
/// every rank; collective. Errors: begins_of()'s and part_weights()'.
ChosenCuts choose_cuts(const job::JobConfig& job, comm::Group group,
                       const parallel::MeshShape& shape, const task::Task& task,
                       const CutInput& input, progress::Observer& observer);

/// Pieces of the model per stage.
int chunks_of(const job::MeshConfig& mesh);

/// How activations between stages are compressed. Error(InvalidArgument) for unknown names.
parallel::pipeline::ActivationCompression shortened_by(const job::CompressionConfig& compression);

// The time to send a micro-batch from stage to stage, over the links between their ranks.

/// The ways by which activations go from a stage to the next one, and gradients back.
struct StageWays {
  std::vector<plan::LinkSpeed> there = {}, back = {};
  double sent = 1;  ///< of each byte that goes by them
};

/// For each stage but the last: from which rank to which. For the last one, too, if a micro-batch
/// comes by it more than once, as with several `chunks` of the model on each stage.
std::vector<std::vector<plan::RankPair>> ways_of(const parallel::MeshShape& shape, int chunks);

/// These, measured, with what `compression` leaves of values of `dtype`: where it shortens any of a
/// stage's ways, that is the slow one. The same figures on every rank. Collective.
std::vector<StageWays> measure_ways(comm::Group group, const parallel::MeshShape& shape, int chunks,
                                    const parallel::pipeline::ActivationCompression& compression,
                                    torch::Dtype dtype);

/// By stage that has ways: seconds in which a micro-batch crosses the cut behind each unit, which
/// gives so many bytes, both ways, over the slowest of these. Pure: what schedule::CutProblem::send
/// wants.
std::vector<std::vector<double>> send_seconds(const std::vector<StageWays>& ways,
                                              const std::vector<double>& bytes);

}  // namespace bimetal::train
