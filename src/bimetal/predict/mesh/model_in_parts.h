#pragma once
// A trained model of which each rank of a mesh has its part, to be used and not trained: no rank
// ever has more of it in memory than that part and one unit.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/checkpoint/model_file.h"
#include "bimetal/device/device.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/predict/generate.h"
#include "bimetal/task/task.h"

namespace bimetal::predict {

struct PartOptions {
  /// The first units of stages after the first. Empty: each stage gets parameters in proportion to
  /// the room on its ranks' devices.
  std::vector<std::int64_t> cuts = {};
  parallel::PartWeights tensor_weights = {};
  torch::Device device{torch::kCPU};
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

struct ModelInParts {
  checkpoint::ModelDescription description;
  parallel::ModelPart part;  ///< in evaluation mode, on the device
  std::string picture;       ///< which rank has which part, for people: a line per stage
};

/// The language model in `run`, which is rank 0's: a checkpoint, the last saved of a folder of
/// them, or a folder of Hugging Face's kind, which must lie on every rank's machine. Each rank
/// reads its own slices of checkpoints, or asks rank 0 if it does not see the files. Collective
/// over the mesh; errors may be one rank's alone, which must then end the group. Errors:
/// InvalidArgument for more stages than units, impossible cuts, and models that are no language
/// models; those of load_saved_model, load_huggingface and parallel::take_hollow_part.
ModelInParts load_in_parts(const parallel::Mesh& mesh, const std::filesystem::path& run,
                           const PartOptions& options);

/// The same of the model of `task`, in `dtype`, with the values of the checkpoint `run`. `path`:
/// that checkpoint, on rank 0.
struct TaskModelInParts {
  std::filesystem::path path;
  parallel::ModelPart part;
};
TaskModelInParts load_in_parts(const parallel::Mesh& mesh, const task::Task& task,
                               torch::Dtype dtype, const std::filesystem::path& run,
                               const PartOptions& options);

// Evaluation by way of a pipeline's stages.

/// Deals so many chunks of weight 1 to the replicas of the stages.
using DealChunks = std::function<parallel::schedule::Deal(std::span<const std::int64_t> chunks)>;

/// For evaluate(): the ranks of a pipeline compute the outputs for their chunks together, by
/// `runner`. A replica is a set, or all ranks are, where stages have replicas of their own number.
/// `stage`: in evaluation mode. All of them must outlive the result.
Through through_stages(const parallel::Mesh& mesh, const parallel::pipeline::StageModel& stage,
                       parallel::pipeline::Runner& runner, DealChunks deal);

/// A stage's computation without gradients, on inputs from `inputs` where the model begins.
parallel::pipeline::StageWork forward_alone(const parallel::pipeline::StageModel& stage,
                                            std::function<task::Values(int micro_batch)> inputs);

// Text from a language model of which each rank of a mesh has its part.

struct TextOptions {
  std::int64_t vocabulary = 0;  ///< of the whole model
  torch::Device device{torch::kCPU};
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  ///< of each wait for other ranks
};

/// The stages of `mesh`, one replica of each, predict together: requests go through them, each
/// keeps its own units' cache, and the first rank of the last stage draws and tells all others.
/// Every rank makes a Continuation of it with the same context, prompt and sampling. For equal
/// logits, hence on like devices, the tokens are those of the whole model on one. Collective over
/// the mesh, which must outlive it. Errors, also while it is used: those of the fabric, naming the
/// stage; an exception on one rank alone must end the group.
std::shared_ptr<Foretelling> foretold_in_parts(const parallel::Mesh& mesh, parallel::ModelPart part,
                                               const TextOptions& options);

}  // namespace bimetal::predict
