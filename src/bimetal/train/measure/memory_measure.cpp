#include "bimetal/train/measure/memory_measure.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/base/deadline.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/device.h"
#include "bimetal/device/graph.h"
#include "bimetal/device/host.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {
namespace {

template <typename Wire>
void fields(Wire& wire, plan::Linear& line) {
  wire(line.fixed, line.per_sample);
}

template <typename Wire>
void fields(Wire& wire, plan::PartFacts& parts) {
  wire.each(parts.splits, [&](plan::SplitFacts& split) {
    wire(split.pieces, split.elements, split.own, split.shared);
  });
  wire(parts.output, parts.saved, parts.forward_peak, parts.backward_peak, parts.forward_s,
       parts.backward_s, parts.forward_sums, parts.backward_sums);
  fields(wire, parts.forward_summed_bytes);
  fields(wire, parts.backward_summed_bytes);
}

template <typename Wire>
void fields(Wire& wire, plan::ModelFacts& facts) {
  wire.each(facts.units, [&](plan::UnitFacts& unit) {
    wire(unit.name, unit.parameters, unit.shared, unit.resident, unit.halved, unit.frozen,
         unit.frozen_shared);
    for (auto* const line : {&unit.output, &unit.saved, &unit.forward_peak, &unit.backward_peak,
                             &unit.forward_s, &unit.backward_s}) {
      fields(wire, *line);
    }
    fields(wire, unit.in_parts);
  });
  wire(facts.element_bytes, facts.state_bytes, facts.batch_bytes, facts.update_s,
       facts.split_inputs, facts.split_weights, facts.sample_weight, facts.by_units);
}

template <typename Wire>
void fields(Wire& wire, plan::RankMemory& rank) {
  auto& load = rank.load;
  fields(wire, rank.facts);
  wire(rank.name, load.ranks, load.shard, load.samples, load.at_once, load.host_is_device,
       load.keeps_freed, load.bucket_bytes, load.rehearsed, load.rehearsed_at_once, load.graphs,
       load.evaluates);
  wire(rank.program, rank.compute_s, rank.room, rank.pool_room, rank.host_room, rank.pool,
       rank.host_pool, rank.units_at_once, rank.may_recompute, rank.optimizer, rank.parameters);
}

double halved_of(const plan::RankMemory& rank) {
  double elements = 0;
  for (const auto& unit : rank.facts.units) elements += static_cast<double>(unit.halved);
  return elements;
}

/// If some rank computes in float32, parameters are gathered in it, and others make copies.
void gather_in_one_type(std::vector<plan::RankMemory>& ranks) {
  const bool alike = std::ranges::all_of(
      ranks, [&](const auto& rank) { return halved_of(rank) == halved_of(ranks.front()); });
  for (auto& rank : ranks) rank.facts.alike = alike;
}

plan::Place place_named(const std::string& name) {
  if (name == "disk") return plan::Place::Disk;
  return name == "host" ? plan::Place::Host : plan::Place::Device;
}

/// This rank's work in a step, and the state that it keeps, before anybody's speed is known: equal
/// shares.
plan::RankLoad load_of(const MemoryQuestion& question, int rank, int ranks) {
  const auto at = static_cast<std::size_t>(rank);
  const auto weight = task::typical_weight(*question.task.training());
  const auto shards = std::reduce(question.shards.begin(), question.shards.end());
  const MicroBatch limit(question.job.train.micro_batch, question.on.device, weight);
  const auto share = balance::equal_shares(ranks, question.batch)[at];
  const auto samples = (share + weight - 1) / weight;
  const auto at_once = [&](std::int64_t of) {
    const auto pieces = std::max<std::int64_t>(1, limit.pieces(of));
    return static_cast<double>((of + pieces - 1) / pieces);
  };
  const bool held_out = question.task.validation() || question.task.evaluation();
  // step_probe.h: all of a global batch, if that is quick enough.
  const auto rehearsed =
      std::min(question.job.train.global_batch, question.task.training()->size());
  return {.ranks = ranks,
          .shard = shards > 0 ? question.shards[at] / shards : 1.0 / ranks,
          .samples = static_cast<double>(samples),
          .at_once = at_once(samples),
          .host_is_device = question.on.device.is_cpu(),
          .keeps_freed = question.on.device.is_cpu() && !question.worker.memory_bytes,
          .bucket_bytes = question.job.parallel.bucket_mb * (1 << 20),
          .rehearsed = static_cast<double>(rehearsed),
          .rehearsed_at_once = at_once(rehearsed),
          .graphs = question.job.train.graphs && device::has_graphs(question.on.device),
          .evaluates = question.job.train.evaluate && held_out};
}

/// To be called after a dry run: it has made the libraries load their code, for which there was
/// room before, and has given back its own memory.
double program_of(const MemoryQuestion& question) {
  if (!question.on.device.is_cpu()) return question.room.program;
  const auto now = static_cast<double>(device::process_memory().resident_bytes);
  return std::max(now, question.room.program);
}

/// Behind the dry run. A limit of the process does not count pages of files, by which it grows as
/// libraries are loaded; the limit itself tells the rest.
double room_left(const MemoryQuestion& question, double grown) {
  const double before = question.room.room;
  if (before <= 0) return std::numeric_limits<double>::infinity();  // nothing is known
  if (question.on.device.is_cpu() && question.worker.memory_bytes) {
    const auto now = static_cast<double>(device::host_memory().free_bytes);
    return std::max(1.0, std::min(before, now));
  }
  return std::max(1.0, before - grown);
}

/// Whether the parameters and a dry run's other needs may be too much to have at a time.
bool is_large(const MemoryQuestion& question, const ModelSize& size) {
  const double bytes = size.elements * static_cast<double>(c10::elementSize(question.on.dtype));
  return question.room.room > 0 && bytes > question.room.room / 2;
}

bool may_update_in_backward(job::JobConfig job) {
  job.zero.level = 3;
  job.zero.update = "backward";
  job.train.recompute = "none";  // each way says by itself
  return job::is_possible(job);
}

}  // namespace

plan::RankMemory measure_room(const device::Place& place, const TrainerOptions& options) {
  plan::RankMemory room{.room = 0, .pool_room = 0, .host_room = 0};
  room.pool = fmt::format("{} {}", options.host_name, place.device.str());
  const auto memory = device::host_memory();
  if (place.device.is_cpu()) {
    room.program = static_cast<double>(device::process_memory().resident_bytes);
    room.room = static_cast<double>(memory.free_bytes);
    room.pool_room = static_cast<double>(memory.shared_free_bytes);
    room.pool += " " + memory.shared_by;
    return room;
  }
  room.host_room = static_cast<double>(std::min(memory.free_bytes, memory.shared_free_bytes));
  room.host_pool = fmt::format("{} cpu {}", options.host_name, memory.shared_by);
  for (const auto& info : device::enumerate_devices()) {
    if (info.device != place.device) continue;
    room.room = room.pool_room = static_cast<double>(info.memory_free_bytes);
  }
  return room;
}

bool may_shard(const job::JobConfig& job) {
  const auto& optimizer = job.train.optimizer;
  return optimizer != "lars" && optimizer != "lamb" && job.parallel.mode != "server" &&
         job.compression.gradients == "none";
}

plan::MemoryInput measure_memory(comm::Group group, const MemoryQuestion& question) {
  const auto rank = group.rank();
  const auto& job = question.job;
  auto mine = question.room;
  mine.name = fmt::format("rank {} ({})", rank, job::to_string(question.worker));
  mine.load = load_of(question, rank, group.size());
  const auto size = size_of_model(question.task);
  const auto facts =
      measure_units(job.train, question.task,
                    {.on = question.on,
                     .timed = question.timed,
                     .at_once = question.at_once,
                     .keep_below = job.zero.keep_below,
                     .by_units = !question.parts && (question.by_units || job.zero.level == 3 ||
                                                     is_large(question, size)),
                     .parts = question.parts,
                     .sequences = job.mesh.sequence_parallel});
  if (facts) mine.facts = *facts;
  mine.facts.by_units = size.by_units;  // as it trains at level 3, however it was measured
  const auto stages = static_cast<std::size_t>(std::max<std::int64_t>(1, job.mesh.stages));
  mine.units_at_once = recomputed_at_once(job.train.recompute, mine.facts.units.size() / stages);
  mine.may_recompute = job.train.recompute == "auto";
  mine.optimizer = place_named(job.zero.offload_optimizer);
  mine.parameters = place_named(job.zero.offload_parameters);
  const auto deadline = Deadline::after(milliseconds_of(job.parallel.timeout_s));
  group.barrier(deadline).wait();  // nobody's dry run takes room for a moment
  mine.program = program_of(question);
  const double grown = mine.program - question.room.program;
  mine.compute_s = mine.facts.pass_seconds().at(mine.load.samples);
  // If the figure cannot be had, no need counts as too large.
  constexpr auto kUnknown = std::numeric_limits<double>::infinity();
  mine.room = room_left(question, grown);
  for (auto* const room : {&mine.pool_room, &mine.host_room}) {
    if (*room <= 0) *room = kUnknown;
  }

  plan::MemoryInput input{.ranks = comm::all_gather_fields(
                              group, std::move(mine), deadline,
                              [](auto& wire, plan::RankMemory& rank) { fields(wire, rank); })};
  for (auto& other : input.ranks) other.load.one_host = group.transport() == comm::Transport::shm;
  gather_in_one_type(input.ranks);
  input.asked = {.level = static_cast<int>(job.zero.level),
                 .copies = static_cast<int>(job.zero.copies),
                 .update_in_backward = job.zero.update == "backward"};
  input.said = job::keys_in(job);
  const auto& optimizer = job.train.optimizer;
  input.offloads = optimizer == "adam" || optimizer == "adamw";
  input.shardable = may_shard(job) && group.size() > 1;
  input.in_backward = input.shardable && may_update_in_backward(job);
  if (job.zero.shards == "memory" && job.zero.weights.empty()) {
    const auto shards = plan::shards_by_room(input);
    for (std::size_t at = 0; at < shards.size(); ++at) input.ranks[at].load.shard = shards[at];
  }
  return input;
}

}  // namespace bimetal::train
