#include "bimetal/balance/ring_parts.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace bimetal::balance {
namespace {

/// Of a part that a rank in the ring has at least, of the smallest room in it: one of nothing would
/// not be in the ring.
constexpr double kLeast = 0.01;
constexpr int kHalvings = 50;

using Parts = std::vector<double>;

double sum_of(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

/// The best parts of a ring where the first is `first`: what is left is a path, on which each edge
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

/// What comes of them rises with the first, stays, and falls: the middle of where it stays.
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

}  // namespace bimetal::balance
