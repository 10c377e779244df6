// Whole samples of unequal weight in the proportions of shares.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>

#include "bimetal/balance/checks.h"
#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

/// The rank with a share that would be through with `more` first; ties go to the larger share, then
/// to the lower rank.
std::size_t first_through(std::span<const double> loads, std::span<const std::int64_t> shares,
                          double more) {
  const auto finish = [&](std::size_t rank) {
    return (loads[rank] + more) / static_cast<double>(shares[rank]);
  };
  std::size_t best = shares.size();
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank] == 0) continue;
    if (best == shares.size() || finish(rank) < finish(best) ||
        (finish(rank) == finish(best) && shares[rank] > shares[best])) {
      best = rank;
    }
  }
  return best;
}

}  // namespace

std::vector<int> deal_out(std::span<const std::int64_t> weights,
                          std::span<const std::int64_t> shares) {
  if (checked_sum(shares) == 0) {
    throw Error(ErrorCode::InvalidArgument, "samples cannot be dealt out by shares that are all 0");
  }
  for (const std::int64_t weight : weights) check_batch(weight);

  std::vector<std::size_t> heaviest_first(weights.size());
  std::iota(heaviest_first.begin(), heaviest_first.end(), std::size_t{0});
  std::ranges::stable_sort(heaviest_first, std::ranges::greater{},
                           [&](std::size_t item) { return weights[item]; });
  std::vector<int> ranks(weights.size());
  std::vector<double> loads(shares.size(), 0.0);  // whole numbers: exact
  for (const std::size_t item : heaviest_first) {
    const auto weight = static_cast<double>(weights[item]);
    const std::size_t rank = first_through(loads, shares, weight);
    loads[rank] += weight;
    ranks[item] = static_cast<int>(rank);
  }
  return ranks;
}

namespace {

/// The least part of a rank in the ring, as a fraction of the smallest room in it: a rank with
/// nothing would not be in the ring.
constexpr double kLeast = 0.01;
constexpr int kHalvings = 50;

using Parts = std::vector<double>;

double sum_of(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

/// The best parts of a ring where the first is `first`: the rest is a path, on which each edge
/// takes all it can, from an end on.
Parts from_first(const Parts& rooms, double first) {
  const auto ranks = rooms.size();
  Parts parts = {first};
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const double next = rank + 1 < ranks ? rooms[rank + 1] : rooms[0] - first;
    parts.push_back(std::max(0.0, std::min(rooms[rank] - parts.back(), next)));
  }
  return parts;
}

/// Their sum rises with the first part, stays, and falls: this is the middle of where it stays.
Parts best_parts(const Parts& rooms) {
  const double most = std::min(rooms[0], rooms[1]);
  const auto all = [&](double first) { return sum_of(from_first(rooms, first)); };
  const double step = most * 1e-9, level = most * 1e-12;
  /// The first place from which it goes on rising, or stays, by less than `slope`.
  const auto edge = [&](double slope) {
    double low = 0, high = most;
    for (int halving = 0; halving < kHalvings; ++halving) {
      const double middle = (low + high) / 2;
      const double rise = all(std::min(most, middle + step)) - all(middle);
      (rise > slope ? low : high) = middle;
    }
    return high;
  };
  return from_first(rooms, (edge(level) + edge(-level)) / 2);
}

/// The mean of the best parts as seen from every rank in both directions, which are as good: ranks
/// that stand alike in the ring get like parts.
Parts even_parts(const Parts& rooms) {
  const auto ranks = rooms.size();
  Parts mean(ranks, 0.0);
  for (std::size_t begin = 0; begin < ranks; ++begin) {
    Parts there, back;
    for (std::size_t i = 0; i < ranks; ++i) {
      there.push_back(rooms[(begin + i) % ranks]);
      back.push_back(rooms[(begin + ranks - i) % ranks]);
    }
    const auto forwards = best_parts(there), backwards = best_parts(back);
    for (std::size_t i = 0; i < ranks; ++i) {
      const double share = 0.5 / static_cast<double>(ranks);
      mean[(begin + i) % ranks] += share * forwards[i];
      // Backwards an edge leads to the rank before.
      mean[(begin + 2 * ranks - i - 1) % ranks] += share * backwards[i];
    }
  }
  return mean;
}

/// Room beside the least part and the least copy.
Parts beside_least(const std::vector<std::size_t>& ring, std::span<const double> rooms,
                   double least) {
  Parts beside;
  for (const auto rank : ring) beside.push_back(rooms[rank] - 2 * least);
  return beside;
}

double least_of(const std::vector<std::size_t>& ring, std::span<const double> rooms) {
  double least = rooms[ring.front()];
  for (const auto rank : ring) least = std::min(least, rooms[rank]);
  return kLeast * least;
}

}  // namespace

std::vector<double> ring_parts(std::span<const double> rooms) {
  if (rooms.size() == 1) return {std::max(0.0, rooms[0])};
  std::vector<std::size_t> by_room(rooms.size());
  std::iota(by_room.begin(), by_room.end(), std::size_t{0});
  std::ranges::stable_sort(by_room, [&](auto a, auto b) { return rooms[a] > rooms[b]; });
  std::vector<std::size_t> best;
  double most = 0;
  for (std::size_t ranks = 2; ranks <= by_room.size() && rooms[by_room[ranks - 1]] > 0; ++ranks) {
    std::vector<std::size_t> ring(by_room.begin(),
                                  by_room.begin() + static_cast<std::ptrdiff_t>(ranks));
    std::ranges::sort(ring);
    const double least = least_of(ring, rooms);
    const double all =
        sum_of(best_parts(beside_least(ring, rooms, least))) + least * static_cast<double>(ranks);
    if (all < most * (1 - 1e-9)) continue;
    most = all;
    best = std::move(ring);
  }
  Parts parts(rooms.size(), 0.0);
  if (best.empty()) return parts;
  const double least = least_of(best, rooms);
  const auto even = even_parts(beside_least(best, rooms, least));
  for (std::size_t at = 0; at < best.size(); ++at) parts[best[at]] = least + even[at];
  return parts;
}

namespace {

void check_parts(std::int64_t total, std::span<const double> weights) {
  const bool sound = std::ranges::all_of(
      weights, [](double weight) { return std::isfinite(weight) && weight > 0; });
  if (weights.empty() || !sound) {
    throw Error(ErrorCode::InvalidArgument,
                "parts need a weight for each rank, greater than 0 and finite");
  }
  if (total < static_cast<std::int64_t>(weights.size())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} whole pieces are too few for {} ranks", total, weights.size()));
  }
}

/// By proportion, rounded down: never more than the best parts have, but for the one at least.
std::vector<std::int64_t> begun(std::int64_t total, std::span<const double> weights) {
  const auto most = *std::ranges::max_element(weights);  // sums of huge weights overflow
  double sum = 0;
  for (const double weight : weights) sum += weight / most;
  std::vector<std::int64_t> parts;
  for (const double weight : weights) {
    const auto exact = static_cast<double>(total) * (weight / most / sum);
    parts.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(exact)));
  }
  return parts;
}

}  // namespace

std::vector<std::int64_t> whole_parts(std::int64_t total, std::span<const double> weights) {
  check_parts(total, weights);
  auto parts = begun(total, weights);
  const auto finish = [&](std::size_t rank, std::int64_t more) {
    return static_cast<double>(parts[rank] + more) / weights[rank];
  };
  auto left = total - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  // One by one: each goes to the rank that is then through first, or comes from the one that is
  // through last.
  for (; left > 0; --left) {
    std::size_t first = 0;
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      if (finish(rank, 1) < finish(first, 1)) first = rank;
    }
    ++parts[first];
  }
  for (; left < 0; ++left) {
    std::size_t last = parts.size();
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (parts[rank] == 1) continue;
      if (last == parts.size() || finish(rank, 0) > finish(last, 0)) last = rank;
    }
    --parts[last];
  }
  return parts;
}

}  // namespace bimetal::balance
