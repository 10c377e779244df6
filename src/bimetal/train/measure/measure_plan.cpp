#include "bimetal/train/measure/measure_plan.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/parallel/data/bucket.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/plan/link_probe.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/choose_precision.h"
#include "bimetal/train/measure/memory_measure.h"
#include "bimetal/train/measure/step_probe.h"
#include "bimetal/train/pipeline/auto_mesh.h"
#include "bimetal/train/replicas.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/share/compute.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {
namespace {

// Training probes for less: its balancer corrects the figures with every step, a plan can't.
constexpr std::chrono::milliseconds kStepBudget{2000};
/// A lower precision costs accuracy: it has to be that much faster to be looked at.
constexpr double kClearlyFaster = 1.1;

// The buckets that data parallel training would send.
std::vector<std::uint64_t> bucket_bytes(const job::JobConfig& job, const task::Task& task,
                                        torch::Dtype dtype) {
  std::vector<parallel::ParameterSize> sizes;
  for (const auto& parameter : make_model_of_sizes(task).parameters()) {
    sizes.push_back({dtype, parameter.numel()});
  }
  const auto later = static_cast<std::size_t>(job.parallel.bucket_mb * (1 << 20));
  std::vector<std::uint64_t> result;
  for (const auto& bucket : parallel::plan_buckets(
           sizes, parallel::ReplicatedModelOptions{}.first_bucket_bytes, later)) {
    result.push_back(static_cast<std::uint64_t>(bucket.count) * c10::elementSize(bucket.dtype));
  }
  return result;
}

/// Whether the job has nothing that refuses tensors in parts on such a worker, of sizes that a plan
/// states.
bool may_have_parts(const job::JobConfig& job, const job::WorkerSpec& worker) {
  auto other = in_mesh(job, 1, 2);
  other.mesh.stage_replicas.clear();
  other.compression.activations = "none";
  return job::is_possible(other, {&worker, 1});
}

/// The highest level of ZeRO that such parts go with.
int level_in_parts(job::JobConfig job, const job::WorkerSpec& worker) {
  for (job.zero.level = 3; job.zero.level > 0; --job.zero.level) {
    if (may_have_parts(job, worker)) break;
  }
  return static_cast<int>(job.zero.level);
}

/// Whether units may be measured in parts, which takes a model that is whole, and for a moment its
/// half beside it: there may be no room for that, at level 3, whose plan needs no whole model, even
/// less, so that it is looked for first. Else large models are measured unit by unit.
bool can_measure_parts(const job::JobConfig& job, const TrainerOptions& options,
                       const task::Task& task, torch::Dtype dtype, const plan::RankMemory& room) {
  const double models = job.zero.level < 3 ? 2 : 3;
  const double bytes =
      models * size_of_model(task).elements * static_cast<double>(c10::elementSize(dtype));
  const auto sharing = std::max(1, options.local_world_size);
  return room.room == 0 || (bytes <= room.room && bytes * sharing <= room.pool_room);
}

/// As it is asked of ranks that have the whole model: weights of a mesh's replicas say nothing of
/// these.
job::JobConfig of_whole_model(job::JobConfig job, int ranks) {
  const bool cut = job.mesh.stages * job.mesh.tensor > 1;
  if (cut && std::ssize(job.zero.weights) != ranks) job.zero.weights.clear();
  return job;
}

/// Whether this rank may make steps with a model of its own, states and all.
bool can_rehearse(const MeasuredPlan& plan, int rank) {
  if (!plan.memory) return true;  // then steps are found not to fit as they are made
  auto alone = plan.memory_input;
  alone.asked = {};
  for (auto& other : alone.ranks) {
    other.load.ranks = 1;
    other.optimizer = other.parameters = plan::Place::Device;
  }
  const auto uses = plan::plan_memory(alone);
  return uses.asked().missing[static_cast<std::size_t>(rank)] <= 0;
}

plan::Cluster cluster_of(const MeasuredPlan& plan, std::vector<plan::LinkSpeed> pairs) {
  std::vector<plan::MeshDevice> devices;
  plan::Network network;
  std::map<std::string, std::size_t> hosts;
  std::map<std::string, int> pools;
  for (const auto& rank : plan.memory_input.ranks) ++pools[rank.pool];
  for (std::size_t r = 0; r < plan.devices.size(); ++r) {
    const auto& host = plan.devices[r].host;
    const auto [place, fresh] = hosts.emplace(host, hosts.size());
    if (fresh) network.hosts.push_back({.name = host});
    const auto& rank = plan.memory_input.ranks[r];
    devices.push_back({.name = plan.input.workers[r].name,
                       .host = place->second,
                       .memory_bytes = std::min(rank.room, rank.pool_room / pools[rank.pool]),
                       .facts = r,
                       .keeps_freed = rank.load.keeps_freed,
                       .is_host = rank.load.host_is_device});
  }
  network.pairs = std::move(pairs);
  return {std::move(devices), std::move(network)};
}

/// The fraction of their bytes that is sent, if they are compressed.
plan::ActivationBytes activation_bytes(const job::JobConfig& job, torch::Dtype dtype) {
  const auto scheme = comm::scheme_of(job.compression.activations);
  if (scheme == comm::Scheme::none) return {};
  return {.sent = parallel::pipeline::sent_part(scheme, dtype),
          .within_hosts =
              comm::compressed_links_of(job.compression.links) == comm::CompressedLinks::all};
}

/// The facts that meshes are planned by.
void take_cluster(const job::JobConfig& job, const device::Place& place, comm::Group group,
                  std::vector<plan::LinkSpeed> pairs, MeasuredPlan& plan) {
  plan.cluster = cluster_of(plan, std::move(pairs));
  for (const auto& rank : plan.memory_input.ranks) plan.mesh_input.facts.push_back(rank.facts);
  const auto weight = plan.mesh_input.facts.front().sample_weight;
  const auto limit = least_limit(group, {job.train.micro_batch, place.device, weight},
                                 Deadline::after(milliseconds_of(job.parallel.timeout_s)));
  plan.mesh_input.global_batch = job.train.global_batch;
  if (limit < job.train.global_batch) plan.mesh_input.micro_batch = limit;
  plan.mesh_input.bucket_mb = static_cast<int>(job.parallel.bucket_mb);
  plan.mesh_input.activations = activation_bytes(job, place.dtype);
  plan.mesh_input.offloads = plan.memory_input.offloads;
  plan.mesh_input.said = job::keys_in(job);
  plan.mesh_input.evaluates = plan.memory_input.ranks.front().load.evaluates;
}

/// Meshes are planned by units, and sharing the whole model by its steps: both of the same time.
void take_steps(const std::vector<plan::PlanWorker>& workers, double batch_weight,
                plan::MeshInput& input) {
  const auto samples = static_cast<double>(input.global_batch);
  const auto at_once = input.micro_batch > 0 ? static_cast<double>(input.micro_batch) : samples;
  for (std::size_t r = 0; r < workers.size(); ++r) {
    auto& facts = input.facts[r];
    const auto& cost = workers[r].cost;
    if (!cost.known()) continue;
    const double update = facts.update_s * static_cast<double>(facts.elements());
    plan::take_whole_step(facts, cost.seconds(batch_weight) - update, samples, at_once);
  }
}

/// Between the ranks' devices, which is through their hosts' memory.
std::vector<plan::LinkSpeed> links_of(comm::Group group, const std::vector<RankDevice>& devices) {
  if (group.size() == 1) return {};
  auto links = plan::probe_pairs(group);
  const auto count = devices.size();
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i] = plan::with_copies(links[i], devices[i / count].copies, devices[i % count].copies);
  }
  return links;
}

plan::LinkSpeed link_of(comm::Group group, std::uint64_t gradient_bytes,
                        const std::vector<RankDevice>& devices) {
  std::vector<plan::HostCopies> copies;
  for (const auto& device : devices) copies.push_back(device.copies);
  return plan::with_copies(plan::probe_link(std::move(group), gradient_bytes), copies);
}

/// This rank's device, with the job's data.
struct Measuring {
  Measuring(const job::JobConfig& job, comm::Group group, const TrainerOptions& options,
            progress::Observer& observer)
      : place(choose_place(job, options)),
        task(load_shared_task(group, job, options, observer)),
        room(measure_room(place, options)),
        by(Deadline::after(milliseconds_of(job.parallel.timeout_s))) {}

  Computing computing(precision::Precision precision, double speed) const {
    return {place.device, place.dtype, precision, speed};
  }

  device::Place place;
  std::shared_ptr<const task::JobTask> task;
  plan::RankMemory room;
  Deadline by;
};

/// The needs of each rank's units, including `parts` if the job allows it, and whether they could
/// be measured.
void take_units(const job::JobConfig& job, comm::Group group, const TrainerOptions& options,
                const Measuring& here, precision::Precision precision, bool parts,
                MeasuredPlan& plan) {
  plan.own_optimizer = here.task->has_optimizer();
  const bool possible = parts && !plan.own_optimizer && may_have_parts(job, options.worker) &&
                        can_measure_parts(job, options, *here.task, here.place.dtype, here.room);
  plan.mesh_input.parts =
      all_in_one_precision(group, possible ? std::optional(precision) : std::nullopt,
                           Deadline::after(milliseconds_of(job.parallel.timeout_s)));
  plan.mesh_input.level_in_parts = level_in_parts(job, options.worker);
  plan.mesh_input.own_parts = !job.mesh.sequence_parallel;
  plan.mesh_input.most_level = may_shard(job) ? 3 : 0;
  plan.input.global_batch = data::make_sampler(*here.task->training(), job.train.seed)
                                .mean_weight(job.train.global_batch);
  plan.input.counts = here.task->counts();
  const auto whole = of_whole_model(job, group.size());
  const std::vector<double> alike(static_cast<std::size_t>(group.size()), 1.0);
  plan.memory_input =
      measure_memory(group, {.job = whole,
                             .worker = options.worker,
                             .task = *here.task,
                             .on = here.computing(precision, options.worker.speed),
                             .room = here.room,
                             .batch = plan.input.global_batch,
                             .shards = shard_weights(whole, group, here.place.device, alike),
                             .timed = Timed::all,
                             .parts = plan.mesh_input.parts});
  const auto operations = task::unit_operations(*here.task);
  for (auto& rank : plan.memory_input.ranks) {
    auto& units = rank.facts.units;
    if (units.size() != operations.size()) continue;
    for (std::size_t u = 0; u < units.size(); ++u) units[u].operations = operations[u];
  }
  if (plan.memory_input.is_known()) plan.memory = plan::plan_memory(plan.memory_input);
}

/// Whether this rank computes in float32, which nobody has asked for, and could in bfloat16.
bool may_be_lower(const job::JobConfig& job, const TrainerOptions& options,
                  const device::Place& place) {
  auto lower = job;
  lower.train.precision = "bfloat16";
  return job::precision_of(job, options.worker) == "float32" && options.worker.precision.empty() &&
         place.dtype == torch::kFloat32 && job::is_possible(lower, {&options.worker, 1}) &&
         knows(precision::Precision::bfloat16, place.device);
}

/// As rank 0 has it: predictions of unlike machines may differ in their last digits.
bool as_rank_0_has_it(comm::Group group, bool mine, Deadline deadline) {
  const auto told = comm::broadcast_bytes(
      std::move(group), comm::Bytes{mine ? std::byte{1} : std::byte{0}}, 0, deadline);
  return told.front() != std::byte{0};
}

/// The best mesh in bfloat16, measured as the others are, where some worker multiplies matrices
/// clearly faster in it, or nothing fits in float32.
void take_lower_precision(job::JobConfig job, comm::Group group, const TrainerOptions& options,
                          const Measuring& here, MeasuredPlan& result,
                          progress::Observer& observer) {
  const bool all = std::ranges::all_of(result.devices, &RankDevice::may_be_lower);
  const bool faster = std::ranges::any_of(result.devices, [](const RankDevice& device) {
    return device.matmul_half_gflops > kClearlyFaster * device.matmul_float32_gflops;
  });
  if (!all || !as_rank_0_has_it(group, faster || result.mesh.best.empty(),
                                Deadline::after(milliseconds_of(job.parallel.timeout_s)))) {
    return;
  }
  observer.on_phase("measuring units in bfloat16");
  job.train.precision = "bfloat16";
  MeasuredPlan lower;
  lower.devices = result.devices;
  lower.input.workers = result.input.workers;
  take_units(job, group, options, here, precision::Precision::bfloat16, /*parts=*/true, lower);
  if (!lower.memory) return;
  take_cluster(job, here.place, group, result.cluster->network().pairs, lower);
  auto plan = plan::plan_mesh({lower.mesh_input, *lower.cluster});
  if (plan.best.empty()) return;
  auto& best = plan.best.front();
  best.reason = plan::beside(best, result.mesh.best.empty() ? nullptr : &result.mesh.best.front());
  result.mesh.lower = {job.train.precision, std::move(best)};
}

}  // namespace

MeasuredPlan measure_meshes(const job::JobConfig& of_all, comm::Group group,
                            const TrainerOptions& options, progress::Observer& observer) {
  const auto job = job::as_worker_has_it(of_all, options.worker);
  const Measuring here(job, group, options, observer);
  MeasuredPlan result;
  observer.on_phase("measuring units");
  result.devices = gather_devices(group, named_device(here.place.device, options), here.by);
  const auto precision = choose_precision(job, options.worker, here.place, *here.task);
  group.barrier().wait();
  take_units(job, group, options, here, precision, job.mesh.tensor != 1, result);
  if (!result.memory) return result;
  for (const auto& device : result.devices) {
    result.input.workers.push_back({short_name(device, result.devices), {}});
  }
  observer.on_phase("measuring the link");
  take_cluster(job, here.place, group, links_of(group, result.devices), result);
  return result;
}

MeasuredPlan measure_plan(const job::JobConfig& of_all, comm::Group group,
                          const TrainerOptions& options, progress::Observer& observer,
                          bool for_these) {
  auto job = job::as_worker_has_it(of_all, options.worker);
  if (!for_these) job.zero.weights.clear();  // of other ranks
  if (for_these && !job::is_open(job.mesh)) shape_of(job.mesh, group.size());
  const Measuring here(job, group, options, observer);
  MeasuredPlan result;
  observer.on_phase("measuring devices");
  group.barrier().wait();
  auto own = measured_device(here.place.device, options);
  own.may_be_lower = may_be_lower(job, options, here.place);
  result.devices = gather_devices(group, own, here.by);
  result.graphs = job.train.graphs;
  const auto precision = choose_precision(job, options.worker, here.place, *here.task);
  auto& input = result.input;

  observer.on_phase("measuring units");
  take_units(job, group, options, here, precision, /*parts=*/true, result);

  observer.on_phase("measuring steps");
  const auto steps = probe_devices(group, job.train, *here.task,
                                   {.on = here.computing(precision, options.worker.speed),
                                    .budget = kStepBudget,
                                    .skip = !can_rehearse(result, group.rank())});

  observer.on_phase("measuring the link");
  input.servers = static_cast<int>(job.servers.weights.size());
  input.copies = static_cast<int>(job.servers.replicas);
  input.bucket_bytes = bucket_bytes(job, *here.task, here.place.dtype);
  input.link = link_of(group, input.gradient_bytes(), result.devices);
  for (std::size_t r = 0; r < result.devices.size(); ++r) {
    input.workers.push_back({short_name(result.devices[r], result.devices), steps[r].cost});
  }
  if (result.memory) {
    result.memory_input.link = input.link;
    result.memory = plan::plan_memory(result.memory_input);
    take_cluster(job, here.place, group, links_of(group, result.devices), result);
    take_steps(input.workers, static_cast<double>(input.global_batch), result.mesh_input);
    auto asked = for_these ? std::optional(asked_mesh(job, result)) : std::nullopt;
    result.mesh = plan::plan_mesh({result.mesh_input, *result.cluster}, std::move(asked));
    if (for_these) take_lower_precision(job, group, options, here, result, observer);
  }
  const bool usable =
      std::ranges::any_of(steps, [](const auto& device) { return device.cost.known(); });
  if (usable || !result.memory) result.plan = plan::make_plan(input);
  return result;
}

}  // namespace bimetal::train
