#pragma once
// Where a job's model is cut into stages.

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
  /// Of each rank, samples a second that it does of its stage; empty where that was not measured.
  std::vector<double> speeds = {};
  std::vector<bool> recompute = {};  ///< by stage; empty: nobody was asked
};

/// What a cut goes by.
struct CutInput {
  /// What units have been measured to take and to give on every rank; those of some are not there
  /// where it could not measure, and none if cuts_by_speed() says no.
  std::vector<plan::ModelFacts> facts = {};
  torch::Dtype dtype = torch::kFloat32;  ///< of what goes from stage to stage
  std::int64_t at_once = 1;              ///< samples of a micro-batch
  int micro_batches = 1;                 ///< of a step
  const StageNeeds* needs = nullptr;     ///< nullptr: nothing is known of memory
};

/// Whether it goes by the speed of ranks where such a job's model is cut.
bool cuts_by_speed(const job::JobConfig& job, const parallel::MeshShape& shape);

/// Of the model that `job` cuts into stages: as mesh.cuts has it, or so that the pipeline's step is
/// shortest by what units take on the devices of each stage and by the links between these, and, if
/// it can be, each stage fits; where not all could measure, elements of parameters stand for time.
/// With train.recompute = "auto" stages that have no room otherwise compute activations again. The
/// parts of tensors are as part_weights() has them. The same on every rank; collective. Errors:
/// begins_of()'s and part_weights()'.
ChosenCuts choose_cuts(const job::JobConfig& job, comm::Group group,
                       const parallel::MeshShape& shape, const task::Task& task,
                       const CutInput& input, progress::Observer& observer);

/// Pieces of the model per stage.
int chunks_of(const job::MeshConfig& mesh);

/// How what goes between stages is shortened. Error(InvalidArgument) for unknown names.
parallel::pipeline::ActivationCompression shortened_by(const job::CompressionConfig& compression);

// What it takes to send a micro-batch from stage to stage, over the links between their ranks.

/// The ways by which activations go from a stage to the next one, and gradients back.
struct StageWays {
  std::vector<plan::LinkSpeed> there = {}, back = {};
  double sent = 1;  ///< of each byte that goes by them
};

/// By stage but the last: from which rank to which. Of the last one, too, where a micro-batch comes
/// by it more than once, as with several `chunks` of the model on each stage.
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
