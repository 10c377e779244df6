#include "bimetal/train/pipeline/auto_mesh.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/base/wire_fields.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/host_allocator.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/plan.h"
#include "bimetal/train/measure/measure_plan.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "bimetal/train/pipeline/stage_run.h"
#include "bimetal/train/replicas.h"

namespace bimetal::train {

namespace {

/// Whether the job has nothing that refuses stages, whose tensors so many ranks have in parts.
bool may_have_stages(const job::JobConfig& job, int tensor) {
  auto other = in_mesh(job, 2, tensor);
  other.mesh.sequence_parallel = false;
  return job::is_possible(other);
}

/// Whether no setting of the job refuses stages of one replica each with their own numbers of
/// parts.
bool may_have_own_parts(const job::JobConfig& job) {
  auto other = in_mesh(job, 2, 2);
  other.mesh.replicas = 1;
  other.mesh.stage_replicas.clear();
  other.mesh.stage_tensor = {1, 2};
  return job::is_possible(other);
}

/// The places that all ranks keep state in: a mesh must fit any of them.
plan::Keeping kept_by_all(const plan::MemoryInput& input) {
  auto keeping = plan::asked_of(input, input.ranks.front());
  for (const auto& rank : input.ranks) {
    if (rank.optimizer == plan::Place::Device) keeping.optimizer = plan::Place::Device;
    if (rank.parameters == plan::Place::Device) keeping.parameters = plan::Place::Device;
  }
  return keeping;
}

/// The reason why no step of the job is predicted, if there is one.
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

/// The job's number of stages must suit its number of micro-batches.
void require_rounds(const job::MeshConfig& mesh) {
  if (mesh.stages < 2 || mesh.micro_batches == 0 || mesh.schedule == job::kAutoSchedule) return;
  parallel::schedule::require_possible(parallel::schedule::kind_named(mesh.schedule),
                                       {.stages = static_cast<int>(mesh.stages),
                                        .micro_batches = static_cast<int>(mesh.micro_batches),
                                        .chunks = chunks_of(mesh)});
}

/// The numbers that the job sets, as training reads them.
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

job::JobConfig in_mesh(job::JobConfig job, int stages, int tensor) {
  job.mesh.stages = stages;
  job.mesh.cuts.assign(static_cast<std::size_t>(stages - 1), 1);
  job.mesh.tensor = tensor;
  job.mesh.stage_tensor.clear();
  job.mesh.tensor_parts = "equal";
  job.mesh.schedule = job::MeshConfig().schedule;
  return job;
}

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
  auto choices = plan::choose_stages({measured.mesh_input, *measured.cluster}, wish);
  if (choices.empty()) {
    return {.reason = "a worker would have no sample of a micro-batch, or no part of the model"};
  }
  return {.choice = std::move(choices.front())};
}

namespace {

/// Shows phases that take long. Notes on the data come when it is loaded for training.
class PhasesAlone final : public progress::Observer {
 public:
  explicit PhasesAlone(progress::Observer& to) : to_(to) {}
  void on_phase(const std::string& what) override { to_.on_phase(what); }
  void on_data(const progress::DataProgress& progress) override { to_.on_data(progress); }

 private:
  progress::Observer& to_;
};

/// The counts of stages; none if all have the same.
std::vector<std::int64_t> unless_alike(const std::vector<std::size_t>& counts) {
  if (plan::all_alike(counts)) return {};
  return {counts.begin(), counts.end()};
}

/// The job with that mesh.
job::JobConfig with_choice(job::JobConfig job, const plan::MeshChoice& choice) {
  job.mesh.stages = static_cast<std::int64_t>(choice.stages.size());
  job.mesh.schedule = parallel::schedule::to_string(choice.schedule);
  if (choice.scheme == plan::Scheme::Pipeline) job.mesh.micro_batches = choice.micro_batches;
  if (choice.schedule == parallel::schedule::Kind::interleaved) job.mesh.chunks = choice.chunks;
  const auto begins = choice.begins();
  job.mesh.cuts.assign(begins.begin() + 1, begins.end());
  job.mesh.stage_replicas = unless_alike(choice.replicas());
  job.mesh.stage_tensor = unless_alike(choice.parts());
  job.mesh.tensor = static_cast<std::int64_t>(choice.most_parts());
  for (const auto& stage : choice.stages) {
    if (stage.parts() == 1) continue;
    job.mesh.tensor_weights = stage.part_weights;
    job.mesh.tensor_parts = "equal";
  }
  // Without stages a step whose parts do not fit cannot be made again in smaller ones.
  if (const auto most = choice.most_at_once(); most > 0) job.train.micro_batch = most;
  return job;
}

/// If tensors are whole, so are sequences, and there are no weights of parts. With one stage, no
/// activations are sent.
void settle_what_follows(job::JobConfig& job) {
  job.mesh.sequence_parallel = job.mesh.sequence_parallel && job.mesh.tensor > 1;
  if (job.mesh.tensor == 1) job.mesh.tensor_weights.clear();
  if (job.mesh.stages == 1) job.compression.activations = "none";
}

/// The settings that with_choice() changes. Ranks may differ in train.micro_batch, if it leaves
/// that alone (`at_once` is 0).
template <typename Wire>
void fields(Wire& wire, job::MeshConfig& mesh, std::int64_t& at_once) {
  wire(mesh.cuts, mesh.stage_replicas, mesh.stage_tensor, mesh.stages, mesh.schedule, mesh.chunks,
       mesh.micro_batches, mesh.tensor, mesh.tensor_parts, mesh.tensor_weights, at_once);
}

/// `mesh = "auto"`, or the key that has it.
std::string asked(const job::MeshConfig& mesh) {
  const bool stages = mesh.stages == job::kAutoStages, tensor = mesh.tensor == job::kAutoTensor;
  return fmt::format("mesh{} = \"auto\"", stages && tensor ? "" : stages ? ".stages" : ".tensor");
}

/// The choice of rank 0, whose keys that need not be alike on all ranks count; throws on every rank
/// where it has none.
job::JobConfig agree(const job::JobConfig& job, comm::Group group,
                     const std::vector<plan::MeshChoice>& choices, std::size_t units) {
  comm::Bytes mine;
  std::int64_t at_once = 0;
  if (!choices.empty()) {
    at_once = choices.front().most_at_once();
    auto chosen = with_choice(job, choices.front());
    FieldWriter out;
    fields(out, chosen.mesh, at_once);
    mine = std::move(out).take();
  }
  const auto told = comm::broadcast_bytes(group, std::move(mine), 0,
                                          Deadline::after(milliseconds_of(job.parallel.timeout_s)));
  if (told.empty()) {
    const auto parts =
        job.mesh.tensor > 1 ? fmt::format(", mesh.tensor = {}", job.mesh.tensor) : "";
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}: {} workers with mesh.replicas = {}{} and a model of {} units have "
                            "no mesh: leave mesh.replicas out{}",
                            asked(job.mesh), group.size(), job.mesh.replicas, parts, units,
                            parts.empty() ? "" : ", or mesh.tensor"));
  }
  auto agreed = job;
  FieldReader in(told);
  fields(in, agreed.mesh, at_once);
  if (at_once > 0) agreed.train.micro_batch = at_once;
  settle_what_follows(agreed);
  return agreed;
}

std::string explain(const std::string& asked, const plan::Cluster& cluster,
                    const std::vector<plan::MeshChoice>& choices) {
  std::string text = asked + ": ";
  for (const auto& choice : choices) {
    const bool first = &choice == &choices.front();
    text += fmt::format("{}{}, {} a step", first ? "" : "; not ", describe(cluster, choice),
                        plan::seconds_text(choice.step_s));
    if (choice.most_parts() > 1) text += fmt::format(" ({})", plan::sums_text(choice));
    if (choice.fits()) continue;
    text += fmt::format(", which lacks {}", plan::bytes_text(choice.missing_bytes));
  }
  return text;
}

/// All ranks are in a choice, in their order.
void keep_as_planned(const std::vector<plan::MeshChoice>& choices, int rank) {
  if (choices.empty()) return;
  const double kept = choices.front().kept_bytes[static_cast<std::size_t>(rank)];
  device::keep_at_most(static_cast<std::size_t>(kept));
}

job::JobConfig settled_alone(job::JobConfig job) {
  if (job.mesh.stages == job::kAutoStages) job.mesh.stages = 1;
  if (job.mesh.tensor == job::kAutoTensor) job.mesh.tensor = 1;
  if (job.mesh.schedule == job::kAutoSchedule) job.mesh.schedule = job::MeshConfig().schedule;
  settle_what_follows(job);
  return job;
}

}  // namespace

namespace {

enum class Room { asked, required };

void require_room(const job::JobConfig& job, const comm::Group& group,
                  const std::vector<plan::MeshChoice>& choices) {
  const bool lacks = !choices.empty() && !choices.front().fits();
  auto told = comm::from_rank_0(
      group,
      [&] {
        return lacks ? fmt::format("the model does not fit on {}: {} more is needed",
                                   counted(group.size(), "worker"),
                                   plan::bytes_text(choices.front().missing_bytes))
                     : std::string();
      },
      Deadline::after(milliseconds_of(job.parallel.timeout_s)));
  if (!told.empty()) throw Error(ErrorCode::OutOfMemory, told);
}

job::JobConfig choose_mesh(const job::JobConfig& job, comm::Group group,
                           const TrainerOptions& options, progress::Observer& observer, Room room) {
  if (group.size() == 1) return settled_alone(job);
  PhasesAlone phases(observer);
  const auto measured = measure_meshes(job, group, options, phases);
  if (!measured.cluster) {
    throw Error(ErrorCode::OutOfMemory,
                fmt::format("{} measures a few samples on each worker, and one has no memory for "
                            "the model's parameters: give the key a number, or leave that worker "
                            "out",
                            asked(job.mesh)));
  }
  const auto choices =
      plan::choose_stages({measured.mesh_input, *measured.cluster}, wish_of(job, measured));
  if (room == Room::required) require_room(job, group, choices);
  auto agreed = agree(job, group, choices, measured.mesh_input.facts.front().units.size());
  keep_as_planned(choices, group.rank());
  observer.on_notice(explain(asked(job.mesh), *measured.cluster, choices));
  return agreed;
}

bool fits_ranks(const job::JobConfig& job, int ranks) {
  try {
    require_counts(job, ranks);
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace

job::JobConfig with_mesh(const job::JobConfig& job, comm::Group group,
                         const TrainerOptions& options, progress::Observer& observer) {
  return is_open(job.mesh) ? choose_mesh(job, group, options, observer, Room::asked) : job;
}

job::JobConfig with_mesh_again(const job::JobConfig& job, comm::Group group,
                               const TrainerOptions& options, progress::Observer& observer) {
  auto open = job;
  if (!is_open(job.mesh)) {
    if (fits_ranks(job, group.size())) return job;
    open.mesh = {};
    open.mesh.stages = job::kAutoStages;
    open.mesh.tensor = job::kAutoTensor;
    open.mesh.sequence_parallel = job.mesh.sequence_parallel;
    open.mesh.schedule = job::kAutoSchedule;
    job::require_possible(open, {});
    observer.on_notice(
        fmt::format("[mesh] is not for {}: it is planned again", counted(group.size(), "worker")));
  }
  return choose_mesh(open, std::move(group), options, observer, Room::required);
}

}  // namespace bimetal::train
