#include "bimetal/cli/predict/mesh_of_use.h"

#include <fmt/format.h>

#include "bimetal/base/counted.h"
#include "bimetal/base/error.h"
#include "bimetal/job/mesh_keys.h"

namespace bimetal::cli {
namespace {

/// A pass has no order of its own: stages have one piece each.
job::MeshConfig without_schedule(job::MeshConfig mesh) {
  if (mesh.schedule == "interleaved") mesh.cuts.clear();
  mesh.schedule = job::MeshConfig().schedule;
  return mesh;
}

/// As many stages as there are ranks for.
job::MeshConfig filled(job::MeshConfig mesh, int ranks) {
  if (ranks % mesh.tensor != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("mesh.tensor = {} needs workers in multiples of {}, and these are {}",
                            mesh.tensor, mesh.tensor, ranks));
  }
  mesh.stages = ranks / mesh.tensor;
  return mesh;
}

}  // namespace

bool cuts_model(const job::MeshConfig& mesh) {
  return mesh.stages == job::kAutoStages || mesh.stages * mesh.tensor > 1;
}

job::MeshConfig mesh_of_text(job::MeshConfig mesh, int ranks) {
  mesh = without_schedule(std::move(mesh));
  mesh.replicas = 1;
  mesh.stage_replicas.clear();
  if (!cuts_model(mesh) || mesh.stages == job::kAutoStages) return filled(std::move(mesh), ranks);
  const auto wanted = mesh.stages * mesh.tensor;
  if (wanted == ranks) return mesh;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("mesh.stages = {} and mesh.tensor = {} are a mesh of {}, and there {}: a text "
                  "goes through one replica of the model, so give --worker {} times, or "
                  "--set mesh.stages={}",
                  mesh.stages, mesh.tensor, counted(wanted, "worker"),
                  ranks == 1 ? "is 1" : fmt::format("are {}", ranks), wanted,
                  ranks % mesh.tensor == 0 ? fmt::format("{}", ranks / mesh.tensor) : "auto"));
}

job::MeshConfig mesh_of_evaluation(job::MeshConfig mesh, int ranks) {
  mesh = without_schedule(std::move(mesh));
  if (mesh.stages != job::kAutoStages) return mesh;
  mesh.replicas = 1;
  mesh.stage_replicas.clear();
  return filled(std::move(mesh), ranks);
}

}  // namespace bimetal::cli
