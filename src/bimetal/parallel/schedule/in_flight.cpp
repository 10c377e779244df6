#include "bimetal/parallel/schedule/in_flight.h"

#include <algorithm>
#include <functional>

namespace bimetal::parallel::schedule {
namespace {

using Counts = std::vector<int>;

bool has_as_many(const Counts& of, const Counts& as) {
  return std::ranges::equal(of, as, std::greater_equal());
}

void keep_if_fullest(const Counts& counts, std::vector<Counts>& fullest) {
  const auto reaches = [&](const Counts& other) { return has_as_many(other, counts); };
  if (std::ranges::any_of(fullest, reaches)) return;
  std::erase_if(fullest, [&](const Counts& other) { return has_as_many(counts, other); });
  fullest.push_back(counts);
}

}  // namespace

std::vector<Counts> fullest_moments(std::span<const Action> actions, int chunks) {
  Counts kept(static_cast<std::size_t>(chunks));
  std::vector<Counts> fullest;
  bool grew = false;
  for (const auto& [what, micro_batch, chunk] : actions) {
    auto& own = kept[static_cast<std::size_t>(chunk)];
    if (what == What::forward) {
      ++own;
      grew = true;
    } else if (what != What::backward_input) {
      if (grew) keep_if_fullest(kept, fullest);
      grew = false;
      --own;
    }
  }
  if (grew || fullest.empty()) keep_if_fullest(kept, fullest);
  return fullest;
}

}  // namespace bimetal::parallel::schedule
