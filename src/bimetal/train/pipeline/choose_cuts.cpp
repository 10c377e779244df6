#include "bimetal/train/pipeline/choose_cuts.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/pipeline/stage_seconds.h"
#include "bimetal/plan/model_facts.h"
#include "bimetal/train/replicas.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {

namespace {

std::vector<double> by_elements(const task::Task& task) {
  std::vector<double> elements;
  for (const auto& unit : make_model_of_sizes(task).units) {
    double sum = 1;
    for (const auto& parameter : unit.parameters) {
      sum += static_cast<double>(parameter.tensor.numel());
    }
    elements.push_back(sum);
  }
  return elements;
}

/// The seconds of a micro-batch, rank by rank, in each unit; nothing if some rank could not
/// measure.
std::vector<double> seconds_of(const CutInput& input) {
  const auto samples = static_cast<double>(input.at_once);
  std::vector<double> seconds;
  for (const auto& facts : input.facts) {
    if (facts.units.empty()) return {};
    for (const auto& unit : facts.units) {
      seconds.push_back(unit.forward_s.at(samples) + unit.backward_s.at(samples));
    }
  }
  return seconds;
}

/// The speed of each rank alone; 0 if it is not known.
std::vector<double> rates_of(std::span<const double> seconds, int ranks) {
  std::vector<double> rates(static_cast<std::size_t>(ranks));
  const auto units = seconds.size() / rates.size();
  for (std::size_t rank = 0; rank < rates.size() && units > 0; ++rank) {
    const auto of_rank = seconds.subspan(rank * units, units);
    rates[rank] = 1 / std::reduce(of_rank.begin(), of_rank.end());
  }
  return rates;
}

/// The speeds for a micro-batch of `samples` in the units that each rank has; nothing if they were
/// not measured.
std::vector<double> speeds_at(std::span<const double> seconds, const parallel::MeshShape& shape,
                              const std::vector<std::size_t>& begins, std::int64_t samples) {
  const auto units = seconds.size() / static_cast<std::size_t>(shape.ranks());
  std::vector<double> speeds;
  for (int rank = 0; rank < shape.ranks() && units > 0; ++rank) {
    const auto stage = static_cast<std::size_t>(parallel::place_of(shape, rank).stage);
    const auto end = stage + 1 < begins.size() ? begins[stage + 1] : units;
    const auto own = seconds.subspan(static_cast<std::size_t>(rank) * units, units)
                         .subspan(begins[stage], end - begins[stage]);
    const auto all = std::reduce(own.begin(), own.end());
    speeds.push_back(all > 0 ? static_cast<double>(samples) / all : 0);
  }
  return speeds;
}

/// Weights of micro-batches, where it is not speed that they go by.
std::vector<double> dealt_by(const job::ParallelConfig& parallel,
                             const parallel::MeshShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.ranks());
  if (parallel.balance == balance::Policy::Equal) return std::vector<double>(ranks, 1.0);
  return parallel.weights.size() == ranks ? parallel.weights : std::vector<double>();
}

/// The bytes of a micro-batch that each unit's output takes, on the rank where that is most, as
/// ranks with `weights` of the tensors send it: whole, or each rank its part of every sequence. The
/// weights are then the same on all stages.
std::vector<double> sent_bytes(const CutInput& input, const job::MeshConfig& mesh,
                               const parallel::PartWeights& weights) {
  std::vector<double> bytes(input.facts.front().units.size());
  for (const auto& facts : input.facts) {
    for (std::size_t u = 0; u < bytes.size(); ++u) {
      bytes[u] = std::max(bytes[u], facts.units[u].output.at(static_cast<double>(input.at_once)));
    }
  }
  if (!mesh.sequence_parallel) return bytes;
  const auto& parts = weights.front();
  const double largest = std::ranges::max(parts) / std::reduce(parts.begin(), parts.end());
  for (auto& figure : bytes) figure *= largest;
  return bytes;
}

/// As measured_cut(): where something is known of memory, with some of it to spare, or none (both,
/// where stages may, with activations that are computed again, too), or lacking as much as a plan
/// may be wrong by, or that in micro-batches of one sample; where that does not do, as if nothing
/// were known.
std::vector<std::size_t> fitting_cut(const parallel::pipeline::MeasuredUnits& measured,
                                     const parallel::MeshShape& shape, int chunks,
                                     int micro_batches, const StageNeeds* needs) {
  using parallel::pipeline::measured_cut;
  std::vector<parallel::schedule::FittingEnds> rooms;
  if (needs) {
    constexpr auto kDoubt = plan::kDoubt;
    for (const double part : {1 - kDoubt, 1.0}) rooms.push_back(needs->within(part));
    const auto again = needs->recomputing();
    if (needs->may_recompute()) {
      for (const double part : {1 - kDoubt, 1.0}) rooms.push_back(again.within(part));
    }
    rooms.push_back(again.within(1 + kDoubt));
    rooms.push_back(again.at_least().within(1 + kDoubt));
  }
  for (const auto& room : rooms) {
    try {
      return measured_cut(measured, shape, chunks, micro_batches, room);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::OutOfMemory) throw;
    }
  }
  return measured_cut(measured, shape, chunks, micro_batches);
}

/// If memory requires that stages compute activations again, each of these takes a forward longer,
/// though its last unit is spared that. So it gets fewer units, if these fit, too.
void recompute_where_needed(parallel::pipeline::MeasuredUnits measured,
                            const parallel::MeshShape& shape, int chunks, int micro_batches,
                            const StageNeeds& needs, ChosenCuts& chosen) {
  chosen.recompute = needs.must_recompute(chosen.begins);
  if (std::ranges::find(chosen.recompute, true) == chosen.recompute.end()) return;
  for (std::size_t at = 0; at < measured.seconds.size(); ++at) {
    const auto rank = static_cast<int>(at / measured.units);
    const auto stage = static_cast<std::size_t>(parallel::place_of(shape, rank).stage);
    if (chosen.recompute[stage]) measured.seconds[at] *= plan::kStepRecomputed;
  }
  try {
    const auto room = needs.recomputing(chosen.recompute).within(1.0);
    chosen.begins = parallel::pipeline::measured_cut(measured, shape, chunks, micro_batches, room);
    chosen.recompute = needs.must_recompute(chosen.begins);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::OutOfMemory) throw;
  }
}

/// Units that count as many seconds as they have elements.
std::vector<double> elements_for_all(const std::vector<double>& elements, int ranks) {
  std::vector<double> all;
  for (int rank = 0; rank < ranks; ++rank) all.insert(all.end(), elements.begin(), elements.end());
  return all;
}

}  // namespace

int chunks_of(const job::MeshConfig& mesh) {
  return mesh.schedule == "interleaved" ? static_cast<int>(mesh.chunks) : 1;
}

parallel::pipeline::ActivationCompression shortened_by(const job::CompressionConfig& compression) {
  return {.scheme = comm::scheme_of(compression.activations),
          .links = comm::compressed_links_of(compression.links)};
}

namespace {

/// Whether micro-batches are dealt by the speed of replicas.
bool deals_by_speed(const job::JobConfig& job, const parallel::MeshShape& shape) {
  return !shape.even() && shape.pipeline_ranks() > shape.stages &&
         job.parallel.balance == balance::Policy::Auto;
}

}  // namespace

bool cuts_by_speed(const job::JobConfig& job, const parallel::MeshShape& shape) {
  const bool parts = shape.tensor > 1 && job.mesh.tensor_parts == "speed";
  return job.mesh.cuts.empty() || parts || deals_by_speed(job, shape);
}

ChosenCuts choose_cuts(const job::JobConfig& job, comm::Group group,
                       const parallel::MeshShape& shape, const task::Task& task,
                       const CutInput& input, progress::Observer& observer) {
  const auto elements = by_elements(task);
  const auto units = elements.size();
  // If ranks are threads of one process, they share the generator that made that model. Nobody goes
  // on to seed it before all have theirs.
  group.barrier().wait();
  const int chunks = chunks_of(job.mesh);
  const auto pieces = static_cast<std::size_t>(shape.stages * chunks);
  const auto* const needs = input.needs;
  auto seconds = seconds_of(input);
  ChosenCuts chosen{.begins = {},
                    .parts = part_weights(job.mesh, shape, rates_of(seconds, shape.ranks()))};
  if (!job.mesh.cuts.empty() || pieces > units) {
    chosen.begins = parallel::pipeline::begins_of(job.mesh.cuts, pieces, units);
    if (needs && needs->may_recompute()) chosen.recompute = needs->must_recompute(chosen.begins);
  } else {
    parallel::pipeline::MeasuredUnits measured{.seconds = seconds,
                                               .units = units,
                                               .parts = chosen.parts,
                                               .dealt = dealt_by(job.parallel, shape)};
    if (!seconds.empty()) {
      observer.on_phase("measuring links");
      const auto ways =
          measure_ways(group, shape, chunks, shortened_by(job.compression), input.dtype);
      measured.send = send_seconds(ways, sent_bytes(input, job.mesh, chosen.parts));
    } else {
      measured.seconds = elements_for_all(elements, shape.ranks());
      observer.on_notice(
          "the whole model does not fit into the memory of every worker, so that its units were "
          "not measured: stages have about as many parameters each; mesh.cuts sets others");
    }
    chosen.begins = fitting_cut(measured, shape, chunks, input.micro_batches, needs);
    if (needs && needs->may_recompute()) {
      recompute_where_needed(std::move(measured), shape, chunks, input.micro_batches, *needs,
                             chosen);
    }
  }
  if (deals_by_speed(job, shape)) {
    chosen.speeds = speeds_at(seconds, shape, chosen.begins, input.at_once);
  }
  return chosen;
}

namespace {

/// Whether activations go from one of these places to the other, of neighbouring stages: of stages
/// with replicas of their own number some time from each to each.
bool is_way(const parallel::MeshShape& shape, const parallel::MeshPlace& from,
            const parallel::MeshPlace& to) {
  return parts_talk(shape, from, to) && (!shape.even() || from.replica == to.replica);
}

double slowest_of(const std::vector<plan::LinkSpeed>& links, double bytes) {
  double slowest = 0;
  if (bytes <= 0) return 0;
  for (const auto& link : links) {
    if (link.bytes_per_s <= 0) continue;
    slowest = std::max(slowest, link.latency_s + bytes / link.bytes_per_s);
  }
  return slowest;
}

/// The fraction of each byte that is sent over these ways.
double sent_by(const std::vector<plan::RankPair>& ways, const parallel::MeshShape& shape,
               const comm::Topology& topology,
               const parallel::pipeline::ActivationCompression& compression, torch::Dtype dtype) {
  double sent = 1;
  for (const auto& [from, to] : ways) {
    const auto scheme = parallel::pipeline::scheme_between(shape, topology, from, to, compression);
    sent = std::min(sent, parallel::pipeline::sent_part(scheme, dtype));
  }
  return sent;
}

}  // namespace

std::vector<std::vector<plan::RankPair>> ways_of(const parallel::MeshShape& shape, int chunks) {
  const bool round = chunks > 1;
  std::vector<std::vector<plan::RankPair>> ways;
  for (int stage = 0; stage + (round ? 0 : 1) < shape.stages; ++stage) {
    auto& of_stage = ways.emplace_back();
    for (int from = 0; from < shape.ranks(); ++from) {
      for (int to = 0; to < shape.ranks(); ++to) {
        const auto sender = place_of(shape, from), receiver = place_of(shape, to);
        if (sender.stage != stage || receiver.stage != (stage + 1) % shape.stages) continue;
        if (is_way(shape, sender, receiver)) of_stage.emplace_back(from, to);
      }
    }
  }
  return ways;
}

std::vector<StageWays> measure_ways(comm::Group group, const parallel::MeshShape& shape, int chunks,
                                    const parallel::pipeline::ActivationCompression& compression,
                                    torch::Dtype dtype) {
  std::vector<StageWays> measured;
  for (auto pairs : ways_of(shape, chunks)) {
    auto& of_stage = measured.emplace_back();
    of_stage.sent = sent_by(pairs, shape, group.topology(), compression, dtype);
    of_stage.there = plan::probe_pairs(group, pairs);
    for (auto& [from, to] : pairs) std::swap(from, to);
    of_stage.back = plan::probe_pairs(group, pairs);
  }
  return measured;
}

std::vector<std::vector<double>> send_seconds(const std::vector<StageWays>& ways,
                                              const std::vector<double>& bytes) {
  std::vector<std::vector<double>> seconds;
  for (const auto& [there, back, sent] : ways) {
    auto& of_stage = seconds.emplace_back();
    for (const double own : bytes) {
      of_stage.push_back(slowest_of(there, sent * own) + slowest_of(back, sent * own));
    }
  }
  return seconds;
}

}  // namespace bimetal::train
