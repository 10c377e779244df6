#include "bimetal/plan/mesh/stage_memory.h"

#include <algorithm>

namespace bimetal::plan {
namespace {

/// Of one unit, beyond what it keeps for every micro-batch in flight.
double passing_of(const UnitFacts& unit, const StageLoad& load) {
  const double most =
      std::max(unit.backward_peak.at(load.at_once), unit.forward_peak.at(load.at_once));
  return load.keeping.recomputed_at_once > 0 ? most
                                             : std::max(0.0, most - unit.saved.at(load.at_once));
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
  const double element = facts.element_bytes;
  const double states =
      facts.state_bytes / (load.keeping.level > 0 ? std::max(1.0, load.replicas) : 1);
  const double buckets = load.replicas > 1 && load.keeping.level == 0 ? element : 0;
  // A shared tensor is in the stages of both of its ends; which these are is not known here.
  const double bytes = static_cast<double>(own.elements()) * (2 * element + states + buckets);
  const double each = load.keeping.recomputed_at_once > 0
                          ? (unit > 0 ? facts.units[unit - 1].output.at(load.at_once) : 0)
                          : own.saved.at(load.at_once);
  return bytes + load.in_flight * each;
}

double passing_bytes(const ModelFacts& facts, const StageLoad& load) {
  double most = 0;
  for (const auto& unit : facts.units) most = std::max(most, passing_of(unit, load));
  return most;
}

double stage_bytes(const ModelFacts& facts, std::size_t begin, std::size_t end,
                   const StageLoad& load) {
  double sum = 0, passing = 0;
  for (std::size_t u = begin; u < end; ++u) {
    sum += unit_bytes(facts, u, load);
    passing = std::max(passing, passing_of(facts.units[u], load));
  }
  if (end == facts.units.size() && begin > 0) {
    // The last stage has a copy of what the head shares with the embedding.
    double shared = 0;
    for (std::size_t u = 0; u < begin; ++u) shared += static_cast<double>(facts.units[u].shared);
    sum += shared * (2.0 * facts.element_bytes + facts.state_bytes);
  }
  return sum + passing;
}

}  // namespace bimetal::plan
