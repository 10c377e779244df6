#include "bimetal/plan/mesh/stage_memory.h"

#include <algorithm>
#include <cmath>

namespace bimetal::plan {
namespace {

/// Flat tensors of gradients that are being filled or on their way to whoever keeps their sums. At
/// level 1, whose gradients wait whole, the one that is being filled is there twice.
double gradients_passing(int level) {
  return level < 1 ? 0 : level == 1 ? 1 : 4;
}

/// What autocast copies of a unit's parameters, once for all micro-batches of a step.
double copies_of(const ModelFacts& facts, const UnitFacts& unit) {
  return static_cast<double>(unit.halved) * facts.half_bytes;
}

/// A figure without the copies that are in it.
double own_bytes(const Linear& figure, double copies, const StageLoad& load) {
  return std::max(0.0, figure.at(load.at_once) - copies);
}

double copies_from(const ModelFacts& facts, std::size_t begin) {
  double bytes = 0;
  for (auto u = begin; u < facts.units.size(); ++u) bytes += copies_of(facts, facts.units[u]);
  return bytes;
}

/// Of one unit, beyond what it keeps for every micro-batch in flight. `behind`: copies for it and
/// those behind it.
double passing_of(const ModelFacts& facts, const UnitFacts& unit, double behind,
                  const StageLoad& load) {
  const double copies = copies_of(facts, unit);
  const double most = std::max(own_bytes(unit.backward_peak, behind, load),
                               own_bytes(unit.forward_peak, copies, load));
  const double activations = load.keeping.recomputed_at_once > 0
                                 ? most
                                 : std::max(0.0, most - own_bytes(unit.saved, copies, load));
  return activations + gradients_passing(load.keeping.level) *
                           static_cast<double>(unit.parameters) * facts.element_bytes;
}

/// Of the same size as these copies are their gradients, which are cast to the parameters' type one
/// by one in the first micro-batch that uses a copy. In later ones autograd, which goes by the age
/// of what it has noted, leaves all of them to the end. A unit that is computed again makes its
/// own. Where parameters come in half there are none.
double autocast_bytes(double copies, const StageLoad& load) {
  if (load.keeping.level > 2) return 0;
  return load.keeping.recomputed_at_once > 0 ? copies : 2 * copies;
}

/// Of all states of its stage those that this device keeps.
double shard_of_states(const StageLoad& load) {
  return load.keeping.level > 0 ? load.shard : 1;
}

/// What is in memory of states that are on a disk, of so many elements.
double window(const ModelFacts& facts, double elements, const StageLoad& load) {
  if (load.keeping.optimizer != Place::Disk) return 0;
  return std::min(kDiskWindow, shard_of_states(load) * facts.state_bytes * elements);
}

/// What a unit alone uses, whole as in a step. At level 3 a shard lies apart but where it is a part
/// of that (shard/flat_parameters.h).
double whole_bytes(const ModelFacts& facts, const UnitFacts& unit, const StageLoad& load) {
  const double whole = static_cast<double>(unit.parameters) * facts.element_bytes;
  if (load.keeping.level < 3) return whole;
  const double apart =
      static_cast<double>(unit.halved + unit.resident) * facts.element_bytes * load.shard;
  return whole - static_cast<double>(unit.halved) * (facts.element_bytes - facts.half_bytes) +
         apart;
}

/// What a parameter takes beside itself. The gradient of one that another stage has, too, is whole
/// to the end of a step.
double beside(const ModelFacts& facts, const StageLoad& load, bool shared) {
  const bool on_disk = load.keeping.optimizer == Place::Disk;
  const double states = on_disk ? 0 : facts.state_bytes * shard_of_states(load);
  const double gradient =
      facts.element_bytes * (load.keeping.level > 1 && !shared ? load.shard : 1);
  const double bucket = load.replicas > 1 && load.keeping.level == 0 ? facts.element_bytes : 0;
  return gradient + states + bucket;
}

double tied_elements(const ModelFacts& facts, std::size_t begin) {
  double shared = 0;
  for (std::size_t u = 0; u < begin; ++u) shared += static_cast<double>(facts.units[u].shared);
  return shared;
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
      static_cast<double>(own.shared) * (facts.element_bytes + beside(facts, load, true)) +
      autocast_bytes(copies_of(facts, own), load);
  const double each = load.keeping.recomputed_at_once > 0
                          ? (unit > 0 ? facts.units[unit - 1].output.at(load.at_once) : 0)
                          : own_bytes(own.saved, copies_of(facts, own), load);
  return bytes + load.in_flight * each;
}

double passing_bytes(const ModelFacts& facts, const StageLoad& load) {
  double most = 0, behind = copies_from(facts, 0);
  for (const auto& unit : facts.units) {
    most = std::max(most, passing_of(facts, unit, behind, load));
    behind -= copies_of(facts, unit);
  }
  return most + window(facts, static_cast<double>(facts.elements()), load);
}

double tied_bytes(const ModelFacts& facts, std::size_t begin, const StageLoad& load) {
  return tied_elements(facts, begin) * (facts.element_bytes + beside(facts, load, true));
}

double stage_bytes(const ModelFacts& facts, std::size_t begin, std::size_t end,
                   const StageLoad& load) {
  const UnitRange all{begin, end};
  return stage_bytes(facts, std::span(&all, 1), load);
}

double stage_bytes(const ModelFacts& facts, std::span<const UnitRange> pieces,
                   const StageLoad& load) {
  double sum = 0, passing = 0, elements = 0;
  for (const auto& [begin, end] : pieces) {
    double behind = copies_from(facts, begin);
    for (auto u = begin; u < end; ++u) {
      const auto& unit = facts.units[u];
      sum += unit_bytes(facts, u, load);
      passing = std::max(passing, passing_of(facts, unit, behind, load));
      behind -= copies_of(facts, unit);
      elements += static_cast<double>(unit.elements());
    }
    if (end < facts.units.size()) continue;
    sum += tied_bytes(facts, begin, load);
    elements += tied_elements(facts, begin);
  }
  return sum + passing + window(facts, elements, load);
}

double scale_to(double least, double room) {
  return least > 0 && std::isfinite(least) ? least / room : 1;
}

}  // namespace bimetal::plan
