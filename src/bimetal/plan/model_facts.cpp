#include "bimetal/plan/model_facts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "bimetal/balance/shares.h"

namespace bimetal::plan {
namespace {

/// Pieces are dealt out once for each number of them: most units are alike.
class Dealt {
 public:
  Dealt(std::span<const double> weights, std::size_t part) : weights_(weights), part_(part) {}

  /// The rank's part of so many pieces, from 0 to 1.
  double of(std::int64_t pieces) {
    const auto [place, fresh] = known_.try_emplace(pieces, 0.0);
    if (fresh) {
      place->second = static_cast<double>(balance::whole_parts(pieces, weights_)[part_]) /
                      static_cast<double>(pieces);
    }
    return place->second;
  }

 private:
  std::span<const double> weights_;
  std::size_t part_;
  std::map<std::int64_t, double> known_;
};

UnitFacts unit_in_parts(UnitFacts unit, Dealt& dealt) {
  const auto& parts = unit.in_parts;
  double cut = 0, here = 0, own_cut = 0, own = 0, shared = 0;
  for (const auto& split : parts.splits) {
    const double part = dealt.of(split.pieces);
    cut += static_cast<double>(split.elements);
    here += part * static_cast<double>(split.elements);
    own_cut += static_cast<double>(split.own);
    own += (1 - part) * static_cast<double>(split.own);
    shared += (1 - part) * static_cast<double>(split.shared);
  }
  const double part = cut > 0 ? here / cut : 1;
  const auto left = [&](double whole) { return whole + (1 - whole) * part; };
  unit.output = unit.output * left(parts.output);
  unit.saved = unit.saved * left(parts.saved);
  unit.forward_peak = unit.forward_peak * left(parts.forward_peak);
  unit.backward_peak = unit.backward_peak * left(parts.backward_peak);
  unit.forward_s = unit.forward_s * left(parts.forward_s);
  unit.backward_s = unit.backward_s * left(parts.backward_s);
  unit.operations *= part;
  const auto all = static_cast<double>(std::max<std::int64_t>(1, unit.elements()));
  const double kept = 1 - (own + shared) / all;
  // At level 3 tensors that all ranks have whole stay so.
  const double whole = static_cast<double>(unit.parameters) - own_cut;
  const double small = std::max(0.0, static_cast<double>(unit.resident) - whole);
  unit.resident = std::llround(whole + (own_cut > 0 ? small * (1 - own / own_cut) : 0));
  unit.parameters -= std::llround(own);
  unit.shared -= std::llround(shared);
  unit.halved = std::min<std::int64_t>(std::llround(static_cast<double>(unit.halved) * kept),
                                       std::max<std::int64_t>(0, unit.parameters - unit.resident));
  return unit;
}

}  // namespace

int most_tensor_ranks(const ModelFacts& facts) {
  constexpr std::int64_t kNone = std::numeric_limits<int>::max();
  std::int64_t least = kNone;
  for (const auto& unit : facts.units) {
    for (const auto& split : unit.in_parts.splits) least = std::min(least, split.pieces);
  }
  return least == kNone ? 1 : static_cast<int>(std::max<std::int64_t>(1, least));
}

int most_tensor_ranks(std::span<const ModelFacts> kinds) {
  int least = std::numeric_limits<int>::max();
  for (const auto& facts : kinds) least = std::min(least, most_tensor_ranks(facts));
  return least;
}

ModelFacts facts_in_parts(const ModelFacts& whole, std::span<const double> weights,
                          std::size_t part) {
  auto facts = whole;
  facts.by_units = false;  // it is made whole before it is cut
  facts.shared_whole = whole.shared();
  Dealt dealt(weights, part);
  for (auto& unit : facts.units) unit = unit_in_parts(std::move(unit), dealt);
  return facts;
}

}  // namespace bimetal::plan
