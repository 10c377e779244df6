#include "bimetal/train/pipeline/stage_run.h"

#include <utility>

#include "bimetal/base/deadline.h"

namespace bimetal::train {

namespace {

/// What replicas of uneven stages are dealt by, as parallel.balance has it.
std::vector<double> speeds_of(const job::ParallelConfig& parallel, const ChosenCuts& cuts) {
  if (parallel.balance == balance::Policy::Fixed) return parallel.weights;
  if (parallel.balance == balance::Policy::Equal) return {};
  return cuts.speeds;
}

}  // namespace

StagePlan plan_stages(const job::JobConfig& job, std::shared_ptr<const parallel::Mesh> mesh,
                      const task::Task& task, const UnitProbe& probe,
                      progress::Observer& observer) {
  if (job.mesh.stages == 1) return {};
  auto cuts = choose_cuts(job, mesh->world(), mesh->shape(), task, probe, observer);
  return {std::move(mesh), std::move(cuts)};
}

std::optional<progress::MeshReport> report_of(const StagePlan& plan, const job::MeshConfig& mesh) {
  if (!plan.mesh) return std::nullopt;
  const auto& shape = plan.mesh->shape();
  return progress::MeshReport{.stages = shape.stages,
                              .replicas = shape.replicas,
                              .uneven = {shape.uneven.begin(), shape.uneven.end()},
                              .tensor = shape.tensor,
                              .schedule = mesh.schedule,
                              .begins = {plan.cuts.begins.begin(), plan.cuts.begins.end()}};
}

std::shared_ptr<StageCompute> make_stage_compute(const job::JobConfig& job, const task::Task& task,
                                                 const StagePlan& plan, const TrainedModel& trained,
                                                 const UnitProbe& probe) {
  if (!plan.mesh) return nullptr;
  return std::make_shared<StageCompute>(
      task, plan.mesh, trained.stage(), trained.stage_store(),
      StageOptions{.device = probe.device,
                   .speed = probe.speed,
                   .precision = probe.precision,
                   .recompute = job.train.recompute,
                   .schedule = parallel::schedule::kind_named(job.mesh.schedule),
                   .chunks = chunks_of(job.mesh),
                   .micro_batches = job.mesh.micro_batches,
                   .micro_batch = job.train.micro_batch,
                   .speeds = speeds_of(job.parallel, plan.cuts),
                   .learns_speeds = job.parallel.balance == balance::Policy::Auto,
                   .tensor = trained.tensor_ranks(),
                   .timeout = milliseconds_of(job.parallel.timeout_s)});
}

}  // namespace bimetal::train
