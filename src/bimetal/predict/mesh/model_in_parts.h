#pragma once
// A trained model of which each rank of a mesh has its part, to be used and not trained: no rank
// ever has more of it in memory than that part and one unit.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/checkpoint/model_description.h"
#include "bimetal/device/place.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/mesh/model_part.h"
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

}  // namespace bimetal::predict
