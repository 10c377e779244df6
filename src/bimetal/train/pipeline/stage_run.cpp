#include "bimetal/train/pipeline/stage_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/island.h"
#include "bimetal/job/worker_spec.h"

namespace bimetal::train {

namespace {

/// The speeds or weights by which replicas of uneven stages are dealt samples, as parallel.balance
/// has it.
std::vector<double> speeds_of(const job::ParallelConfig& parallel, const ChosenCuts& cuts) {
  if (parallel.balance == balance::Policy::Fixed) return parallel.weights;
  if (parallel.balance == balance::Policy::Equal) return {};
  return cuts.speeds;
}

/// Leaves out settings that are known only once the model is cut.
StageOptions options_of(const job::JobConfig& job, const Computing& on) {
  return {.device = on.device,
          .speed = on.speed,
          .precision = on.precision,
          .channels_last = on.channels_last,
          .recompute = job.train.recompute,
          .schedule = parallel::schedule::kind_named(job.mesh.schedule),
          .chunks = chunks_of(job.mesh),
          .micro_batches = job.mesh.micro_batches,
          .micro_batch = job.train.micro_batch,
          .learns_speeds = job.parallel.balance == balance::Policy::Auto,
          .compression = shortened_by(job.compression),
          .timeout = milliseconds_of(job.parallel.timeout_s)};
}

/// The micro-batches in which the samples of a step go through a pipeline.
struct MicroBatches {
  std::int64_t samples;
  int count;

  std::int64_t at_once() const { return (samples + count - 1) / count; }
};

MicroBatches micro_batches_of_step(const job::JobConfig& job, const parallel::Mesh& mesh,
                                   const task::Task& task, const StageOptions& options) {
  const auto& shape = mesh.shape();
  require_possible(job, shape);
  const auto samples = samples_of_pipeline(shape, job.train.global_batch);
  const MicroBatches step{
      samples, micro_batches_of(options, shape, agreed_limit(mesh, task, options), samples)};
  parallel::schedule::require_possible(options.schedule, {.stages = shape.stages,
                                                          .micro_batches = step.count,
                                                          .chunks = options.chunks,
                                                          .windows = mesh.windows()});
  return step;
}

void tell_recomputing(const std::vector<bool>& by_stage, progress::Observer& observer) {
  std::vector<std::string> names;
  for (std::size_t stage = 0; stage < by_stage.size(); ++stage) {
    if (by_stage[stage]) names.push_back(fmt::format("stage {}", stage));
  }
  if (names.empty()) return;
  observer.on_notice(fmt::format(
      "train.recompute = \"auto\": {} compute{} activations again, which would not fit otherwise",
      fmt::join(names, ", "), names.size() == 1 ? "s" : ""));
}

}  // namespace

void require_possible(const job::JobConfig& job, const parallel::MeshShape& shape) {
  auto known = job;
  known.mesh.replicas = shape.replicas;
  job::require_possible(known, {});
  const auto asked = job.mesh.micro_batches;
  const auto samples = samples_of_pipeline(shape, job.train.global_batch);
  if (shape.stages == 1 || asked <= samples) return;
  const auto stages = static_cast<std::int64_t>(shape.stages);
  const auto grain = job.mesh.schedule == "interleaved" ? stages : 1;
  const auto most = samples / grain * grain;
  const auto replicas = shape.even() ? shape.replicas : 1;
  const auto fewer = most > 0 ? fmt::format("take {} at most, or ", most) : std::string();
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("mesh.micro_batches = {}, and {} {} samples of a step "
                          "(train.global_batch = {}), so that some would be empty: {}a "
                          "train.global_batch of at least {}",
                          asked, replicas > 1 ? "each replica gets about" : "there are", samples,
                          job.train.global_batch, fewer, asked * replicas));
}

StagePlan plan_stages(const job::JobConfig& job, std::shared_ptr<const parallel::Mesh> mesh,
                      const task::Task& task, const Computing& on, std::int64_t batch,
                      MemoryCheck& memory, progress::Observer& observer) {
  if (job.mesh.stages == 1) return {};
  const auto& shape = mesh->shape();
  const auto step = micro_batches_of_step(job, *mesh, task, options_of(job, on));
  CutInput input{.dtype = on.dtype, .at_once = step.at_once(), .micro_batches = step.count};
  std::optional<StageNeeds> needs;
  const bool timed = cuts_by_speed(job, shape);
  const bool planned = shape.tensor == 1 && memory.plans();  // memory, of tensors that are whole
  if (timed || planned) {
    observer.on_phase(timed ? "measuring units" : "planning memory");
    auto question = memory.question(on, batch);
    question.timed = timed ? Timed::passes : Timed::nothing;
    question.at_once = step.at_once();
    question.by_units = planned;
    auto measured = measure_memory(mesh->world(), question);
    for (const auto& rank : measured.ranks) input.facts.push_back(rank.facts);
    if (planned && measured.is_known()) {
      needs.emplace(std::move(measured), job, shape, step.count);
      input.needs = &*needs;
    }
  }
  auto cuts = choose_cuts(job, mesh->world(), shape, task, input, observer);
  if (needs) {
    if (const auto text = needs->lacking(cuts.begins)) memory.refuse(*text, observer);
    memory.take_plan(needs->recomputing(cuts.recompute).planned(cuts.begins));
    tell_recomputing(cuts.recompute, observer);
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
                              .parts = {shape.parts.begin(), shape.parts.end()},
                              .schedule = mesh.schedule,
                              .begins = {plan.cuts.begins.begin(), plan.cuts.begins.end()}};
}

std::shared_ptr<StageCompute> make_stage_compute(const job::JobConfig& job, const task::Task& task,
                                                 const StagePlan& plan, const TrainedModel& trained,
                                                 const Computing& on) {
  if (!plan.mesh) return nullptr;
  auto options = options_of(job, on);
  options.speeds = speeds_of(job.parallel, plan.cuts);
  options.tensor = trained.tensor_ranks();
  if (job.fabric.islands != "off") {
    // Its own limit comes behind the one by which its transfers are given up.
    options.vendor = c10d::vendor_library(on.device, 2 * options.timeout);
  }
  const auto stage = static_cast<std::size_t>(plan.mesh->place().stage);
  const bool planned = !plan.cuts.recompute.empty() && plan.cuts.recompute[stage];
  if (planned && options.recompute == "auto") options.recompute = "all";
  return std::make_shared<StageCompute>(task, plan.mesh, trained.stage(), trained.stage_sums(),
                                        std::move(options));
}

}  // namespace bimetal::train
