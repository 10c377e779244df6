#include "bimetal/parallel/shard/flat_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/algorithms/reduction.h"

namespace bimetal::parallel::shard {

Places places_of(const std::vector<task::NamedTensor>& trained) {
  Places places;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    places.emplace(trained[i].tensor.unsafeGetTensorImpl(), i);
  }
  return places;
}

std::vector<ParameterPlace> describe(const task::Model& model,
                                     const std::vector<task::NamedTensor>& trained,
                                     const WholeForm& form) {
  const auto places = places_of(trained);
  std::vector<ParameterPlace> described(trained.size());
  std::vector<bool> seen(trained.size()), multiplied(trained.size(), true);
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    for (const auto& [name, tensor] : model.units[unit].parameters) {
      const auto found = places.find(tensor.unsafeGetTensorImpl());
      if (found == places.end()) continue;
      auto& place = described[found->second];
      const auto& products = model.units[unit].products;
      if (std::ranges::find(products, name) == products.end()) multiplied[found->second] = false;
      if (seen[found->second]) {
        place.shared = place.shared || place.unit != unit;
      } else {
        place = {tensor.scalar_type(), tensor.numel(), unit, false};
        seen[found->second] = true;
      }
    }
  }
  for (std::size_t i = 0; i < described.size(); ++i) {
    auto& place = described[i];
    if (place.shared) continue;
    place.resident = place.count < form.keep_below;
    const bool halved = multiplied[i] && !place.resident && place.dtype == torch::kFloat32;
    if (halved) place.gathered = form.half;
  }
  return described;
}

namespace {

/// A line of caches, and all that vectors are loaded by.
constexpr std::size_t kAlignedBytes = 64;
/// Elements a rank, on average: with fewer, following the weights exactly counts for more.
constexpr std::size_t kAlignedFrom = 1024;

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

/// Lays parameters one after the other.
class Layout {
 public:
  explicit Layout(std::size_t least_bytes) : least_bytes_(least_bytes) {}

  void add(std::size_t index, const ParameterPlace& place) {
    if (place.count == 0) return;
    close_others(place);
    auto& flat = flats_[flat_for(place)];
    flat.slots.push_back({index, flat.count, place.count});
    flat.count += place.count;
    unit_ = place.unit;
  }
  std::vector<FlatPlan> take() && { return std::move(flats_); }

 private:
  /// Those that are large enough end with their unit.
  void close_others(const ParameterPlace& place) {
    if (place.unit == unit_) return;
    std::erase_if(open_, [&](std::size_t index) {
      const auto& flat = flats_[index];
      const auto bytes = static_cast<std::size_t>(flat.count) * c10::elementSize(flat.dtype);
      return !flat.resident && bytes >= least_bytes_;
    });
  }

  std::size_t flat_for(const ParameterPlace& place) {
    const auto gathered = place.gathered.value_or(place.dtype);
    const auto found = std::ranges::find_if(open_, [&](std::size_t index) {
      const auto& flat = flats_[index];
      return flat.dtype == place.dtype && flat.gathered == gathered &&
             flat.resident == place.resident;
    });
    const bool own = place.shared || place.late;
    if (!own && found != open_.end()) return *found;
    FlatPlan flat;
    flat.dtype = place.dtype;
    flat.gathered = gathered;
    flat.unit = place.unit;
    flat.shared = place.shared;
    flat.resident = place.resident;
    flat.late = place.late;
    flats_.push_back(std::move(flat));
    if (!own) open_.push_back(flats_.size() - 1);
    return flats_.size() - 1;
  }

  const std::size_t least_bytes_;
  std::size_t unit_ = 0;  ///< of the last one
  std::vector<FlatPlan> flats_;
  std::vector<std::size_t> open_;  ///< may still grow, at most one of a kind
};

/// In the type that is kept, and in that of the whole.
std::size_t aligned_elements(const FlatPlan& flat) {
  return kAlignedBytes / std::min(c10::elementSize(flat.dtype), c10::elementSize(flat.gathered));
}

/// The same cuts, each at the nearest multiple of `step`. A rank with nothing gets nothing.
std::vector<std::size_t> align(std::vector<std::size_t> counts, std::size_t step) {
  const auto all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::size_t end = 0, begin = 0;
  for (auto& count : counts) {
    end += count;
    const auto cut = end == all ? all : std::min(all, (end + step / 2) / step * step);
    count = cut - begin;
    begin = cut;
  }
  return counts;
}

std::vector<std::size_t> cut(const FlatPlan& flat, const std::vector<std::uint32_t>& weights) {
  const auto count = static_cast<std::size_t>(flat.count);
  auto counts = comm::counts_for(weights, count);
  const auto ranks = static_cast<std::size_t>(
      std::ranges::count_if(weights, [](std::uint32_t weight) { return weight > 0; }));
  return count < kAlignedFrom * ranks ? counts : align(std::move(counts), aligned_elements(flat));
}

}  // namespace

std::int64_t FlatPlan::begin_of(int rank) const {
  const auto own = counts.begin() + rank;
  return static_cast<std::int64_t>(std::accumulate(counts.begin(), own, std::size_t{0}));
}

std::vector<FlatPlan> plan_flats(std::span<const ParameterPlace> parameters,
                                 std::span<const double> weights, std::size_t least_bytes) {
  const auto whole = whole_weights(weights);
  Layout layout(least_bytes);
  const auto add = [&](auto which) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (which(parameters[i])) layout.add(i, parameters[i]);
    }
  };
  add([](const ParameterPlace& place) { return place.late; });
  add([](const ParameterPlace& place) { return !place.late && place.resident; });
  add([](const ParameterPlace& place) { return !place.late && !place.resident; });
  auto flats = std::move(layout).take();
  for (auto& flat : flats) flat.counts = cut(flat, whole);
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
