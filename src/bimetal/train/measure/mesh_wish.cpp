#include "bimetal/train/measure/mesh_wish.h"

#include <optional>
#include <string>
#include <utility>

#include "bimetal/job/combinations.h"
#include "bimetal/job/mesh_keys.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/train/measure/measure_plan.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "bimetal/train/pipeline/stage_run.h"
#include "bimetal/train/tensor/replicas.h"

namespace bimetal::train {
namespace {

/// Whether the job has nothing that refuses stages, whose tensors so many ranks have in parts.
bool may_have_stages(job::JobConfig job, int tensor) {
  job.mesh.stages = 2;
  job.mesh.cuts = {1};
  job.mesh.tensor = tensor;
  job.mesh.stage_tensor.clear();
  job.mesh.tensor_parts = "equal";
  job.mesh.schedule = job::MeshConfig().schedule;
  job.mesh.sequence_parallel = false;
  return job::is_possible(job);
}

/// Whether it has nothing that refuses stages in parts of their own number, of one replica each.
bool may_have_own_parts(job::JobConfig job) {
  job.mesh.stages = 2;
  job.mesh.replicas = 1;
  job.mesh.stage_replicas.clear();
  job.mesh.cuts = {1};
  job.mesh.tensor = 2;
  job.mesh.stage_tensor = {1, 2};
  job.mesh.tensor_parts = "equal";
  job.mesh.schedule = job::MeshConfig().schedule;
  return job::is_possible(job);
}

/// What all ranks keep elsewhere: a mesh is to fit any of them.
plan::Keeping kept_by_all(const plan::MemoryInput& input) {
  auto keeping = plan::asked_of(input, input.ranks.front());
  for (const auto& rank : input.ranks) {
    if (rank.optimizer == plan::Place::Device) keeping.optimizer = plan::Place::Device;
    if (rank.parameters == plan::Place::Device) keeping.parameters = plan::Place::Device;
  }
  return keeping;
}

/// What no step is predicted of.
std::optional<std::string> unplanned(const job::JobConfig& job, const MeasuredPlan& measured) {
  const bool cut = job.mesh.stages > 1 || job.mesh.tensor > 1;
  if (job.parallel.mode == "server") return "parameter servers are in the first table alone";
  if (job.parallel.balance != balance::Policy::Auto) {
    return "meshes are planned with parallel.balance = \"auto\"";
  }
  if (cut && measured.own_optimizer) return "the task has an optimizer of its own";
  if (job.mesh.tensor > 1 && !measured.mesh_input.parts) {
    return "parts of tensors were not measured: workers differ in precision, or one has no room "
           "for "
           "half a model beside the whole";
  }
  return std::nullopt;
}

/// What a number of stages that the job says asks of its micro-batches.
void require_rounds(const job::MeshConfig& mesh) {
  if (mesh.stages < 2 || mesh.micro_batches == 0 || mesh.schedule == job::kAutoSchedule) return;
  parallel::schedule::require_possible(parallel::schedule::kind_named(mesh.schedule),
                                       {.stages = static_cast<int>(mesh.stages),
                                        .micro_batches = static_cast<int>(mesh.micro_batches),
                                        .chunks = chunks_of(mesh)});
}

/// What is not open: as training reads it.
void take_numbers(const job::JobConfig& job, const MeasuredPlan& measured, plan::StagesWish& wish) {
  const auto shape = shape_of(job.mesh, static_cast<int>(measured.devices.size()));
  require_possible(job, shape);
  part_weights(job.mesh, shape, {});
  const auto pieces = static_cast<std::size_t>(shape.stages * chunks_of(job.mesh));
  const auto units = measured.mesh_input.facts.front().units.size();
  const bool stages = shape.stages > 1;
  if (stages && (!job.mesh.cuts.empty() || pieces > units)) {
    parallel::pipeline::begins_of(job.mesh.cuts, pieces, units);
  }
  wish.replicas = shape.replicas;
  wish.tensor = shape.tensor;
  wish.stage_replicas = {shape.uneven.begin(), shape.uneven.end()};
  wish.stage_tensor = {shape.parts.begin(), shape.parts.end()};
  if (stages) wish.cuts = {job.mesh.cuts.begin(), job.mesh.cuts.end()};
  wish.uneven = false;
}

}  // namespace

plan::StagesWish wish_of(const job::JobConfig& job, const MeasuredPlan& measured) {
  const bool open = job.mesh.schedule == job::kAutoSchedule;
  require_rounds(job.mesh);
  return {.stages = static_cast<int>(job.mesh.stages),
          .replicas = static_cast<int>(job.mesh.replicas),
          .tensor = static_cast<int>(job.mesh.tensor),
          .tensor_weights = job.mesh.tensor_weights,
          .parts_by_speed = job.mesh.tensor_parts == "speed",
          .schedule =
              parallel::schedule::kind_named(open ? job::MeshConfig().schedule : job.mesh.schedule),
          .chunks = chunks_of(job.mesh),
          .any_schedule = open,
          .micro_batches = static_cast<int>(job.mesh.micro_batches),
          .any_micro_batches = job::is_open(job.mesh),
          .keeping = kept_by_all(measured.memory_input),
          .pipelines = !measured.own_optimizer && may_have_stages(job, 1),
          .pipelines_in_parts = may_have_stages(job, 2),
          .uneven = job.parallel.balance == balance::Policy::Auto,
          .own_parts = may_have_own_parts(job) && job.parallel.balance == balance::Policy::Auto};
}

plan::AskedMesh asked_mesh(const job::JobConfig& job, const MeasuredPlan& measured) {
  auto wish = wish_of(job, measured);
  if (!job::is_open(job.mesh)) take_numbers(job, measured, wish);
  if (auto reason = unplanned(job, measured)) return {.reason = std::move(*reason)};
  auto choices = plan::choose_stages(measured.mesh_input, *measured.cluster, wish);
  if (choices.empty()) {
    return {.reason = "a worker would have no sample of a micro-batch, or no part of the model"};
  }
  return {.choice = std::move(choices.front())};
}

}  // namespace bimetal::train
