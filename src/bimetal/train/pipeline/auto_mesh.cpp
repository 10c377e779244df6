#include "bimetal/train/pipeline/auto_mesh.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/job/combinations.h"
#include "bimetal/job/mesh_keys.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/mesh/mesh_advice.h"
#include "bimetal/plan/mesh/stages_choice.h"
#include "bimetal/plan/plan_advice.h"
#include "bimetal/train/measure/measure_plan.h"
#include "bimetal/train/recomputation.h"

namespace bimetal::train {
namespace {

/// Shows what takes long; what there is to say of the data is said when it is loaded to be trained
/// with.
class PhasesAlone final : public progress::Observer {
 public:
  explicit PhasesAlone(progress::Observer& to) : to_(to) {}
  void on_phase(const std::string& what) override { to_.on_phase(what); }
  void on_data(const progress::DataProgress& progress) override { to_.on_data(progress); }

 private:
  progress::Observer& to_;
};

/// The job with that mesh.
job::JobConfig with_choice(job::JobConfig job, const plan::MeshChoice& choice) {
  job.mesh.stages = static_cast<std::int64_t>(choice.stages.size());
  for (const auto& stage : choice.stages) {
    if (stage.begin > 0) job.mesh.cuts.push_back(static_cast<std::int64_t>(stage.begin));
    if (choice.even()) continue;
    job.mesh.stage_replicas.push_back(static_cast<std::int64_t>(stage.devices.size()));
  }
  return job;
}

/// The choice of rank 0, whose keys that need not be alike on all ranks count; throws on every rank
/// where it has none.
job::JobConfig agree(const job::JobConfig& job, comm::Group group,
                     const std::vector<plan::MeshChoice>& choices, std::size_t units) {
  const auto own = choices.empty() ? job : with_choice(job, choices.front());
  WireWriter out;
  out.i64(choices.empty() ? 0 : own.mesh.stages);
  for (const auto cut : own.mesh.cuts) out.i64(cut);
  for (const auto count : own.mesh.stage_replicas) out.i64(count);
  const auto told = comm::broadcast_bytes(group, std::move(out).take(), 0,
                                          Deadline::after(milliseconds_of(job.parallel.timeout_s)));
  WireReader in(told);
  auto agreed = job;
  agreed.mesh.stages = in.i64();
  if (agreed.mesh.stages == 0) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("mesh.stages = \"auto\": {} workers with mesh.replicas = {} and a model "
                    "of {} units have no mesh: leave mesh.replicas out",
                    group.size(), job.mesh.replicas, units));
  }
  for (std::int64_t stage = 1; stage < agreed.mesh.stages; ++stage) {
    agreed.mesh.cuts.push_back(in.i64());
  }
  while (in.remaining() > 0) agreed.mesh.stage_replicas.push_back(in.i64());
  return agreed;
}

/// Whether the job has nothing that refuses stages.
bool may_have_stages(job::JobConfig job) {
  job.mesh.stages = 2;
  job.mesh.cuts = {1};
  try {
    job::require_possible(job, {});
  } catch (const Error&) {
    return false;
  }
  return true;
}

std::string explain(const plan::Cluster& cluster, const std::vector<plan::MeshChoice>& choices) {
  std::string text = "mesh.stages = \"auto\": ";
  for (const auto& choice : choices) {
    const bool first = &choice == &choices.front();
    text += fmt::format(
        "{}{}, {} a step{}", first ? "" : "; not ", describe(cluster, choice),
        plan::seconds_text(choice.step_s),
        choice.fits() ? ""
                      : fmt::format(", which lacks {}", plan::bytes_text(choice.missing_bytes)));
  }
  return text;
}

}  // namespace

job::JobConfig with_mesh(const job::JobConfig& job, comm::Group group,
                         const TrainerOptions& options, progress::Observer& observer) {
  if (job.mesh.stages != job::kAutoStages || group.size() == 1) {
    auto stated = job;
    if (job.mesh.stages == job::kAutoStages) stated.mesh.stages = 1;
    return stated;
  }
  PhasesAlone phases(observer);
  const auto measured = measure_meshes(job, group, options, phases);
  if (!measured.cluster) {
    throw Error(
        ErrorCode::OutOfMemory,
        "mesh.stages = \"auto\" measures a few samples on each worker, and one has no memory "
        "for the model's parameters: give mesh.stages a number, or leave that worker out");
  }
  const auto units = measured.mesh_input.facts.front().units.size();
  auto keeping = measured.memory_input.asked;
  keeping.recomputed_at_once = recomputed_at_once(job.train.recompute, units);
  const auto choices =
      plan::choose_stages(measured.mesh_input, *measured.cluster,
                          {.replicas = static_cast<int>(job.mesh.replicas),
                           .schedule = parallel::schedule::kind_named(job.mesh.schedule),
                           .micro_batches = static_cast<int>(job.mesh.micro_batches),
                           .keeping = keeping,
                           .pipelines = !measured.own_optimizer && may_have_stages(job),
                           .uneven = job.parallel.balance == balance::Policy::Auto});
  auto agreed = agree(job, group, choices, units);
  observer.on_notice(explain(*measured.cluster, choices));
  return agreed;
}

}  // namespace bimetal::train
