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
  /// Units that stages but the first begin with. Empty: of each stage's parameters as much as its
  /// ranks' devices have room for, in proportion.
  std::vector<std::int64_t> cuts = {};
  parallel::PartWeights tensor_weights = {};
  torch::Device device{torch::kCPU};
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

struct ModelInParts {
  checkpoint::ModelDescription description;
  parallel::ModelPart part;  ///< in evaluation mode, on the device
  std::string picture;       ///< who has what, for people: a line per stage
};

/// The language model in `run`, which is rank 0's: a checkpoint, the last saved of a folder of
/// them, or a folder of Hugging Face's kind, which must lie on every rank's machine. Of checkpoints
/// each rank reads its own slices, or asks rank 0 where it does not see the files. Collective over
/// the mesh; errors may be one rank's alone, which must then end the group. Errors:
/// InvalidArgument for more stages than units, cuts that are none, and what is no language model;
/// those of load_saved_model, load_huggingface and parallel::take_hollow_part.
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

/// Which replicas of the stages compute chunks, of which there are so many of weight 1.
using DealChunks = std::function<parallel::schedule::Deal(std::span<const std::int64_t> chunks)>;

/// For evaluate(): the ranks of a pipeline compute the outputs for their chunks together, by
/// `runner`. A replica is a set, or all ranks are, where stages have replicas of their own number.
/// `stage`: in evaluation mode. All of them must outlive what is returned.
Through through_stages(const parallel::Mesh& mesh, const parallel::pipeline::StageModel& stage,
                       parallel::pipeline::Runner& runner, DealChunks deal);

/// What a stage computes without gradients, of inputs that `inputs` gives where the model begins.
parallel::pipeline::StageWork forward_alone(const parallel::pipeline::StageModel& stage,
                                            std::function<task::Values(int micro_batch)> inputs);

// Text from a language model of which each rank of a mesh has its part.

struct TextOptions {
  std::int64_t vocabulary = 0;  ///< of the whole model
  torch::Device device{torch::kCPU};
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  ///< of each wait for other ranks
};

/// The stages of `mesh`, one replica of each, foretell together: what is asked goes through them,
/// each keeps what its own units remember, and the first rank of the last stage draws and tells all
/// others. Every rank makes a Continuation of it with the same context, prompt and sampling. For
/// equal logits, hence on like devices, the tokens are those of the whole model on one. Collective
/// over the mesh, which must outlive it. Errors, also while it is used: those of the fabric, naming
/// the stage; what one rank alone throws must end the group.
std::shared_ptr<Foretelling> foretold_in_parts(const parallel::Mesh& mesh, parallel::ModelPart part,
                                               const TextOptions& options);

}  // namespace bimetal::predict
