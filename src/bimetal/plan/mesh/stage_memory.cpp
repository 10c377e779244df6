#include "bimetal/plan/mesh/stage_memory.h"

#include <algorithm>

namespace bimetal::plan {
namespace {

/// Flat tensors of gradients that are being filled or on their way to whoever keeps their sums.
constexpr double kGradientsPassing = 4;

/// Bytes of a figure without the copies of parameters in it that autocast would have made, where
/// these come in half.
double own_bytes(const ModelFacts& facts, const UnitFacts& unit, const StageLoad& load,
                 const Linear& figure) {
  const double copies =
      load.keeping.level < 3 ? 0 : static_cast<double>(unit.halved) * facts.half_bytes;
  return std::max(0.0, figure.at(load.at_once) - copies);
}

/// Of one unit, beyond what it keeps for every micro-batch in flight.
double passing_of(const ModelFacts& facts, const UnitFacts& unit, const StageLoad& load) {
  const double most = std::max(own_bytes(facts, unit, load, unit.backward_peak),
                               own_bytes(facts, unit, load, unit.forward_peak));
  const double activations = load.keeping.recomputed_at_once > 0
                                 ? most
                                 : std::max(0.0, most - own_bytes(facts, unit, load, unit.saved));
  if (load.keeping.level < 2) return activations;
  return activations +
         kGradientsPassing * static_cast<double>(unit.parameters) * facts.element_bytes;
}

/// What a unit alone uses, whole as in a step. At level 3 a shard lies apart but where it is a part
/// of that (shard/flat_parameters.h).
double whole_bytes(const ModelFacts& facts, const UnitFacts& unit, const StageLoad& load) {
  const double whole = static_cast<double>(unit.parameters) * facts.element_bytes;
  if (load.keeping.level < 3) return whole;
  const double apart = static_cast<double>(unit.halved + unit.resident) * facts.element_bytes /
                       std::max(1.0, load.replicas);
  return whole - static_cast<double>(unit.halved) * (facts.element_bytes - facts.half_bytes) +
         apart;
}

/// What a parameter takes beside itself. The gradient of one that another stage has, too, is whole
/// to the end of a step.
double beside(const ModelFacts& facts, const StageLoad& load, bool shared) {
  const double shards = std::max(1.0, load.replicas);
  const double states = facts.state_bytes / (load.keeping.level > 0 ? shards : 1);
  const double gradient = facts.element_bytes / (load.keeping.level > 1 && !shared ? shards : 1);
  const double bucket = load.replicas > 1 && load.keeping.level == 0 ? facts.element_bytes : 0;
  return gradient + states + bucket;
}

}  // namespace

double in_flight(parallel::schedule::Kind kind, std::size_t stage, std::size_t stages,
                 int micro_batches) {
  using parallel::schedule::Kind;
  const double all = micro_batches;
  if (kind == Kind::gpipe) return all;
  if (kind == Kind::one_f_one_b) return std::min(all, static_cast<double>(stages - stage));
  return std::min(all, static_cast<double>(stages));
}

double unit_bytes(const ModelFacts& facts, std::size_t unit, const StageLoad& load) {
  const auto& own = facts.units[unit];
  // A shared tensor is in the stages of both of its ends; which these are is not known here.
  const double bytes =
      whole_bytes(facts, own, load) +
      static_cast<double>(own.parameters) * beside(facts, load, false) +
      static_cast<double>(own.shared) * (facts.element_bytes + beside(facts, load, true));
  const double each = load.keeping.recomputed_at_once > 0
                          ? (unit > 0 ? facts.units[unit - 1].output.at(load.at_once) : 0)
                          : own_bytes(facts, own, load, own.saved);
  return bytes + load.in_flight * each;
}

double passing_bytes(const ModelFacts& facts, const StageLoad& load) {
  double most = 0;
  for (const auto& unit : facts.units) most = std::max(most, passing_of(facts, unit, load));
  return most;
}

double stage_bytes(const ModelFacts& facts, std::size_t begin, std::size_t end,
                   const StageLoad& load) {
  double sum = 0, passing = 0;
  for (std::size_t u = begin; u < end; ++u) {
    sum += unit_bytes(facts, u, load);
    passing = std::max(passing, passing_of(facts, facts.units[u], load));
  }
  if (end == facts.units.size() && begin > 0) {
    // The last stage has a copy of what the head shares with the embedding.
    double shared = 0;
    for (std::size_t u = 0; u < begin; ++u) shared += static_cast<double>(facts.units[u].shared);
    sum += shared * (facts.element_bytes + beside(facts, load, true));
  }
  return sum + passing;
}

}  // namespace bimetal::plan
