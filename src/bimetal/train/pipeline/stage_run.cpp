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

/// But for what is known only once the model is cut.
StageOptions options_of(const job::JobConfig& job, const UnitProbe& probe) {
  return {.device = probe.device,
          .speed = probe.speed,
          .precision = probe.precision,
          .recompute = job.train.recompute,
          .schedule = parallel::schedule::kind_named(job.mesh.schedule),
          .chunks = chunks_of(job.mesh),
          .micro_batches = job.mesh.micro_batches,
          .micro_batch = job.train.micro_batch,
          .learns_speeds = job.parallel.balance == balance::Policy::Auto,
          .compression = {.scheme = comm::scheme_of(job.compression.activations),
                          .links = comm::compressed_links_of(job.compression.links)},
          .timeout = milliseconds_of(job.parallel.timeout_s)};
}

/// Of large models whose tensors are whole.
std::optional<StageNeeds> measure_needs(const job::JobConfig& job, const parallel::Mesh& mesh,
                                        const task::Task& task, const UnitProbe& probe,
                                        std::int64_t batch, MemoryCheck& memory,
                                        progress::Observer& observer) {
  const auto& shape = mesh.shape();
  if (shape.tensor > 1) return std::nullopt;
  auto measured = memory.measure(probe.precision, batch, observer);
  if (!measured) return std::nullopt;
  const auto options = options_of(job, probe);
  const auto samples = samples_of_pipeline(shape, job.train.global_batch);
  return StageNeeds(std::move(*measured), job, shape,
                    micro_batches_of(options, shape, agreed_limit(mesh, task, options), samples));
}

}  // namespace

StagePlan plan_stages(const job::JobConfig& job, std::shared_ptr<const parallel::Mesh> mesh,
                      const task::Task& task, UnitProbe probe, std::int64_t batch,
                      MemoryCheck& memory, progress::Observer& observer) {
  if (job.mesh.stages == 1) return {};
  const auto needs = measure_needs(job, *mesh, task, probe, batch, memory, observer);
  probe.by_units = needs.has_value();
  auto cuts = choose_cuts(job, mesh->world(), mesh->shape(), task, probe, needs ? &*needs : nullptr,
                          observer);
  if (needs) {
    if (const auto text = needs->lacking(cuts.begins)) memory.refuse(*text, observer);
    memory.take_plan(needs->planned(cuts.begins));
  }
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
  auto options = options_of(job, probe);
  options.speeds = speeds_of(job.parallel, plan.cuts);
  options.tensor = trained.tensor_ranks();
  return std::make_shared<StageCompute>(task, plan.mesh, trained.stage(), trained.stage_store(),
                                        std::move(options));
}

}  // namespace bimetal::train
