#include "bimetal/train/measure/memory_measure.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "bimetal/base/deadline.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host.h"
#include "bimetal/job/combinations.h"
#include "bimetal/train/compute.h"
#include "bimetal/train/measure/unit_measure.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {
namespace {

using plan::Linear;

void write(WireWriter& writer, const Linear& line) {
  writer.f64(line.fixed);
  writer.f64(line.per_sample);
}

Linear read_line(WireReader& reader) {
  Linear line;
  line.fixed = reader.f64();
  line.per_sample = reader.f64();
  return line;
}

template <typename Unit>
auto lines_of(Unit& unit) {
  return std::array{&unit.output,        &unit.saved,     &unit.forward_peak,
                    &unit.backward_peak, &unit.forward_s, &unit.backward_s};
}

void write(WireWriter& writer, const plan::PartFacts& parts) {
  writer.u32(static_cast<std::uint32_t>(parts.splits.size()));
  for (const auto& split : parts.splits) {
    for (const auto number : {split.pieces, split.elements, split.own, split.shared}) {
      writer.i64(number);
    }
  }
  for (const double number :
       {parts.output, parts.saved, parts.forward_peak, parts.backward_peak, parts.forward_s,
        parts.backward_s, parts.forward_sums, parts.backward_sums}) {
    writer.f64(number);
  }
  write(writer, parts.forward_summed_bytes);
  write(writer, parts.backward_summed_bytes);
}

plan::PartFacts read_parts(WireReader& reader) {
  plan::PartFacts parts;
  parts.splits.resize(reader.u32());
  for (auto& split : parts.splits) {
    for (auto* const number : {&split.pieces, &split.elements, &split.own, &split.shared}) {
      *number = reader.i64();
    }
  }
  for (double* const number :
       {&parts.output, &parts.saved, &parts.forward_peak, &parts.backward_peak, &parts.forward_s,
        &parts.backward_s, &parts.forward_sums, &parts.backward_sums}) {
    *number = reader.f64();
  }
  parts.forward_summed_bytes = read_line(reader);
  parts.backward_summed_bytes = read_line(reader);
  return parts;
}

void write(WireWriter& writer, const plan::ModelFacts& facts) {
  writer.u32(static_cast<std::uint32_t>(facts.units.size()));
  for (const auto& unit : facts.units) {
    writer.string(unit.name);
    writer.i64(unit.parameters);
    writer.i64(unit.shared);
    writer.i64(unit.resident);
    writer.i64(unit.halved);
    writer.f64(unit.frozen);
    writer.f64(unit.frozen_shared);
    for (const auto* line : lines_of(unit)) write(writer, *line);
    write(writer, unit.in_parts);
  }
  writer.i32(facts.element_bytes);
  writer.f64(facts.state_bytes);
  writer.f64(facts.batch_bytes);
  for (const double number : {facts.update_s, facts.split_inputs, facts.split_weights}) {
    writer.f64(number);
  }
  writer.i64(facts.sample_weight);
  writer.i32(facts.by_units ? 1 : 0);
}

plan::ModelFacts read_facts(WireReader& reader) {
  plan::ModelFacts facts;
  const auto units = reader.u32();
  for (std::uint32_t u = 0; u < units; ++u) {
    auto& unit = facts.units.emplace_back();
    unit.name = reader.string();
    unit.parameters = reader.i64();
    unit.shared = reader.i64();
    unit.resident = reader.i64();
    unit.halved = reader.i64();
    unit.frozen = reader.f64();
    unit.frozen_shared = reader.f64();
    for (auto* line : lines_of(unit)) *line = read_line(reader);
    unit.in_parts = read_parts(reader);
  }
  facts.element_bytes = reader.i32();
  facts.state_bytes = reader.f64();
  facts.batch_bytes = reader.f64();
  for (auto* number : {&facts.update_s, &facts.split_inputs, &facts.split_weights}) {
    *number = reader.f64();
  }
  facts.sample_weight = reader.i64();
  facts.by_units = reader.i32() != 0;
  return facts;
}

comm::Bytes encode(const plan::RankMemory& rank) {
  WireWriter writer;
  writer.string(rank.name);
  write(writer, rank.facts);
  for (const double number :
       {rank.load.shard, rank.load.samples, rank.load.at_once, rank.load.host_is_device ? 1.0 : 0.0,
        rank.load.keeps_freed ? 1.0 : 0.0, rank.load.bucket_bytes, rank.load.rehearsed,
        rank.load.rehearsed_at_once, rank.program, rank.compute_s, rank.room, rank.pool_room,
        rank.host_room}) {
    writer.f64(number);
  }
  writer.string(rank.pool);
  writer.string(rank.host_pool);
  writer.u64(rank.units_at_once);
  writer.u8(rank.may_recompute ? 1 : 0);
  writer.u8(rank.load.evaluates ? 1 : 0);
  for (const auto place : {rank.optimizer, rank.parameters}) {
    writer.u8(static_cast<std::uint8_t>(place));
  }
  return std::move(writer).take();
}

plan::RankMemory decode(const comm::Bytes& bytes, int ranks) {
  WireReader reader(bytes);
  plan::RankMemory rank;
  rank.name = reader.string();
  rank.facts = read_facts(reader);
  rank.load.ranks = ranks;
  rank.load.shard = reader.f64();
  rank.load.samples = reader.f64();
  rank.load.at_once = reader.f64();
  rank.load.host_is_device = reader.f64() > 0;
  rank.load.keeps_freed = reader.f64() > 0;
  for (double* number :
       {&rank.load.bucket_bytes, &rank.load.rehearsed, &rank.load.rehearsed_at_once, &rank.program,
        &rank.compute_s, &rank.room, &rank.pool_room, &rank.host_room}) {
    *number = reader.f64();
  }
  rank.pool = reader.string();
  rank.host_pool = reader.string();
  rank.units_at_once = reader.u64();
  rank.may_recompute = reader.u8() != 0;
  rank.load.evaluates = reader.u8() != 0;
  for (auto* place : {&rank.optimizer, &rank.parameters}) {
    *place = static_cast<plan::Place>(reader.u8());
  }
  reader.expect_end();
  return rank;
}

double halved_of(const plan::RankMemory& rank) {
  double elements = 0;
  for (const auto& unit : rank.facts.units) elements += static_cast<double>(unit.halved);
  return elements;
}

/// Where some rank computes in float32, parameters are gathered in it, and others make copies.
void gather_in_one_type(std::vector<plan::RankMemory>& ranks) {
  const bool alike = std::ranges::all_of(
      ranks, [&](const auto& rank) { return halved_of(rank) == halved_of(ranks.front()); });
  for (auto& rank : ranks) rank.facts.alike = alike;
}

plan::Place place_named(const std::string& name) {
  if (name == "disk") return plan::Place::Disk;
  return name == "host" ? plan::Place::Host : plan::Place::Device;
}

/// What this rank computes of a step, and keeps.
plan::RankLoad load_of(const MemoryQuestion& question, int rank, int ranks) {
  const auto at = static_cast<std::size_t>(rank);
  const auto weight = task::typical_weight(*question.task.training());
  const auto shards = std::accumulate(question.shards.begin(), question.shards.end(), 0.0);
  const MicroBatch limit(question.job.train.micro_batch, question.place.device, weight);
  const auto samples = (question.shares[at] + weight - 1) / weight;
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
          .host_is_device = question.place.device.is_cpu(),
          .keeps_freed = question.place.device.is_cpu() && !question.worker.memory_bytes,
          .bucket_bytes = question.job.parallel.bucket_mb * (1 << 20),
          .rehearsed = static_cast<double>(rehearsed),
          .rehearsed_at_once = at_once(rehearsed),
          .evaluates = question.job.train.evaluate && held_out};
}

/// Once a dry run has made the libraries load what they need, for which there was room before; its
/// own memory has been given back.
double program_of(const MemoryQuestion& question) {
  if (!question.place.device.is_cpu()) return question.room.program;
  const auto now = static_cast<double>(device::process_memory().resident_bytes);
  return std::max(now, question.room.program);
}

/// Behind the dry run. A limit of the process does not count pages of files, by which it grows as
/// libraries are loaded; it says itself what it leaves.
double room_left(const MemoryQuestion& question, double grown) {
  const double before = question.room.room;
  if (before <= 0) return std::numeric_limits<double>::infinity();  // nothing is known
  if (question.place.device.is_cpu() && question.worker.memory_bytes) {
    const auto now = static_cast<double>(device::host_memory().free_bytes);
    return std::max(1.0, std::min(before, now));
  }
  return std::max(1.0, before - grown);
}

/// Whether the parameters and what a dry run needs beside them may be too much to have at a time.
bool is_large(const MemoryQuestion& question, const ModelSize& size) {
  const double bytes = size.elements * static_cast<double>(c10::elementSize(question.place.dtype));
  return question.room.room > 0 && bytes > question.room.room / 2;
}

double seconds_of(const plan::ModelFacts& facts, double samples) {
  double seconds = 0;
  for (const auto& unit : facts.units) {
    seconds += unit.forward_s.at(samples) + unit.backward_s.at(samples);
  }
  return seconds;
}

bool may_update_in_backward(job::JobConfig job) {
  job.zero.level = 3;
  job.zero.update = "backward";
  job.train.recompute = "none";  // each way says by itself
  return job::is_possible(job);
}

}  // namespace

RankRoom measure_room(const device::Place& place, const TrainerOptions& options) {
  RankRoom room;
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
  plan::RankMemory mine;
  mine.name = fmt::format("rank {} ({})", rank, job::to_string(question.worker));
  mine.load = load_of(question, rank, group.size());
  const auto size = size_of_model(question.task);
  const auto facts =
      measure_units(job.train, question.task,
                    {.device = question.place.device,
                     .dtype = question.place.dtype,
                     .precision = question.precision,
                     .speed = question.worker.speed,
                     .timed = question.timed,
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
  mine.compute_s = seconds_of(mine.facts, mine.load.samples);
  // Where it cannot be had, nothing is known to be too little.
  constexpr auto kUnknown = std::numeric_limits<double>::infinity();
  mine.room = room_left(question, grown);
  mine.pool = question.room.pool;
  mine.pool_room = question.room.pool_room > 0 ? question.room.pool_room : kUnknown;
  mine.host_pool = question.room.host_pool;
  mine.host_room = question.room.host_room > 0 ? question.room.host_room : kUnknown;

  plan::MemoryInput input;
  for (const auto& bytes : comm::all_gather_bytes(group, encode(mine), deadline)) {
    input.ranks.push_back(decode(bytes, group.size()));
    input.ranks.back().load.one_host = group.transport() == comm::Transport::shm;
  }
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
