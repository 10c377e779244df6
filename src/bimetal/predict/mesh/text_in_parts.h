#pragma once
// Text from a language model of which each rank of a mesh has its part.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/predict/generate.h"

namespace bimetal::predict {

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
