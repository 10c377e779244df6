#include "bimetal/parallel/shard/flat_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/comm/algorithms/weighted.h"

namespace bimetal::parallel::shard {
namespace {

/// Whole numbers, since ranks must agree to the last element.
std::vector<std::uint32_t> whole_weights(std::span<const double> weights) {
  const double most = weights.empty() ? 0 : *std::ranges::max_element(weights);
  const bool fit = std::ranges::all_of(
      weights, [](double weight) { return std::isfinite(weight) && weight >= 0; });
  if (!fit || !(most > 0)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("shards by the weights [{}]: each must be 0 or more, and one above 0",
                            fmt::join(weights, ", ")));
  }
  std::vector<std::uint32_t> whole;
  for (const double weight : weights) {
    whole.push_back(static_cast<std::uint32_t>(std::lround(weight / most * comm::kWholeWeight)));
  }
  return whole;
}

FlatPlan flat_from(const ParameterPlace& first) {
  FlatPlan flat;
  flat.dtype = first.dtype;
  flat.unit = first.unit;
  flat.shared = first.shared;
  return flat;
}

}  // namespace

std::int64_t FlatPlan::begin_of(int rank) const {
  const auto own = counts.begin() + rank;
  return static_cast<std::int64_t>(std::accumulate(counts.begin(), own, std::size_t{0}));
}

std::vector<FlatPlan> plan_flats(std::span<const ParameterPlace> parameters,
                                 std::span<const double> weights, std::size_t least_bytes) {
  const auto whole = whole_weights(weights);
  std::vector<FlatPlan> flats;
  std::vector<std::size_t> open;  // flats that may still grow, at most one of a type
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    if (parameter.count == 0) continue;
    std::erase_if(open, [&](std::size_t index) {
      const auto& flat = flats[index];
      const auto bytes = static_cast<std::size_t>(flat.count) * c10::elementSize(flat.dtype);
      return parameters[flat.slots.back().parameter].unit != parameter.unit && bytes >= least_bytes;
    });
    const auto found = std::ranges::find_if(
        open, [&](std::size_t index) { return flats[index].dtype == parameter.dtype; });
    std::size_t index = flats.size();
    if (!parameter.shared && found != open.end()) {
      index = *found;
    } else {
      flats.push_back(flat_from(parameter));
      if (!parameter.shared) open.push_back(index);
    }
    flats[index].slots.push_back({i, flats[index].count, parameter.count});
    flats[index].count += parameter.count;
  }
  for (auto& flat : flats) {
    flat.counts = comm::counts_for(whole, static_cast<std::size_t>(flat.count));
  }
  return flats;
}

Range kept_of(const FlatPlan& plan, const FlatPlan::Slot& slot, int rank) {
  const auto begin = plan.begin_of(rank);
  const auto end = begin + static_cast<std::int64_t>(plan.counts[static_cast<std::size_t>(rank)]);
  const auto from = std::max(begin, slot.offset);
  const auto to = std::min(end, slot.offset + slot.count);
  return to > from ? Range{from - slot.offset, to - from} : Range{};
}

}  // namespace bimetal::parallel::shard
