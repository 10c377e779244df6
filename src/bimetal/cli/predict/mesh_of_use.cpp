#include "bimetal/cli/predict/mesh_of_use.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <numeric>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/train/replicas.h"

namespace bimetal::cli {
namespace {

/// A pass has no order of its own: stages have one piece each. Numbers left open become stages. A
/// list of numbers of parts says how many there are.
job::MeshConfig for_a_pass(job::MeshConfig mesh) {
  if (mesh.schedule == "interleaved") mesh.cuts.clear();
  mesh.schedule = job::MeshConfig().schedule;
  if (mesh.stages == job::kAutoStages && !mesh.stage_tensor.empty()) {
    mesh.stages = std::ssize(mesh.stage_tensor);
  }
  if (mesh.tensor != job::kAutoTensor) return mesh;
  mesh.tensor = 1;
  mesh.tensor_parts = job::MeshConfig().tensor_parts;
  mesh.tensor_weights.clear();
  if (mesh.stages == 1) mesh.stages = job::kAutoStages;
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

/// For one text.
job::MeshConfig with_parts_by_stage(job::MeshConfig mesh, int ranks) {
  const auto wanted = std::reduce(mesh.stage_tensor.begin(), mesh.stage_tensor.end());
  if (wanted == ranks) return mesh;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("mesh.tensor = [{}] is a mesh of {}, and there {}: a text goes through "
                          "one replica of the model, so give --worker {} times, or --set mesh=auto",
                          fmt::join(mesh.stage_tensor, ", "), counted(wanted, "worker"),
                          ranks == 1 ? "is 1" : fmt::format("are {}", ranks), wanted));
}

}  // namespace

bool cuts_model(const job::MeshConfig& mesh) {
  return is_open(mesh) || mesh.stages * mesh.tensor > 1;
}

job::JobConfig job_of_use(job::JobConfig job) {
  const job::JobConfig usual;
  job.zero = {};
  job.compression = {};
  job.parallel.mode = usual.parallel.mode;
  job.parallel.exact = usual.parallel.exact;
  job.train.optimizer = usual.train.optimizer;
  job.train.recompute = usual.train.recompute;
  job.train.deterministic = false;
  job.checkpoint.keep_best = false;
  job.mesh.sequence_parallel = false;
  return job;
}

job::WorkerSpec worker_of_use(job::WorkerSpec worker) {
  worker.offload_optimizer.clear();
  worker.offload_parameters.clear();
  worker.offload_path.clear();
  return worker;
}

std::vector<std::string> workers_of_text(const job::JobConfig& job) {
  const auto& all = job.cluster.workers;
  if (all.empty() || is_open(job.mesh) || !cuts_model(job.mesh)) return all;
  parallel::MeshShape shape;
  try {
    shape = train::shape_of(job.mesh, static_cast<int>(all.size()));
  } catch (const Error&) {
    return all;  // mesh_of_text() names numbers that would do
  }
  std::vector<std::string> workers;
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (int part = 0; part < shape.tensor_of(stage); ++part) {
      const auto rank = parallel::rank_at(shape, {stage, 0, part});
      workers.push_back(all[static_cast<std::size_t>(rank)]);
    }
  }
  return workers;
}

job::MeshConfig mesh_of_text(job::MeshConfig mesh, int ranks) {
  mesh = for_a_pass(std::move(mesh));
  mesh.replicas = 1;
  mesh.stage_replicas.clear();
  if (!mesh.stage_tensor.empty()) return with_parts_by_stage(std::move(mesh), ranks);
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
  mesh = for_a_pass(std::move(mesh));
  if (mesh.stages != job::kAutoStages) return mesh;
  mesh.replicas = 1;
  mesh.stage_replicas.clear();
  return filled(std::move(mesh), ranks);
}

}  // namespace bimetal::cli
