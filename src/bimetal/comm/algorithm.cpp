#include "bimetal/comm/algorithm.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "bimetal/base/error.h"
#include "bimetal/comm/algorithms/reduction.h"

namespace bimetal::comm {
namespace {

constexpr Algorithm kAll[] = {Algorithm::automatic,
                              Algorithm::recursive_doubling,
                              Algorithm::halving_doubling,
                              Algorithm::ring,
                              Algorithm::tree,
                              Algorithm::two_level,
                              Algorithm::weighted};

}  // namespace

std::string_view to_string(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::automatic: return "auto";
    case Algorithm::recursive_doubling: return "recursive_doubling";
    case Algorithm::halving_doubling: return "halving_doubling";
    case Algorithm::ring: return "ring";
    case Algorithm::tree: return "tree";
    case Algorithm::two_level: return "two_level";
    case Algorithm::weighted: return "weighted";
  }
  return "unknown algorithm";
}

Algorithm algorithm_for(Algorithm asked) {
  const char* variable = std::getenv("BIMETAL_ALGORITHM");
  if (asked != Algorithm::automatic || variable == nullptr || *variable == '\0') return asked;
  const auto found = std::ranges::find_if(
      kAll, [&](Algorithm algorithm) { return to_string(algorithm) == variable; });
  if (found != std::end(kAll)) return *found;
  std::string names;
  for (const auto algorithm : kAll) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(algorithm));
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_ALGORITHM={} is none of {}", variable, names));
}

namespace {

// Below this promise the measurement's own error would decide.
constexpr double kWorthWeights = 0.9;
// A pipeline does better than its formula on long messages, and is the one best understood.
constexpr double kWorthHalving = 0.9;
constexpr std::uint64_t kShortest = 1024;
constexpr std::uint64_t kLongest = std::uint64_t{64} << 20;

bool power_of_two(std::size_t n) {
  return std::has_single_bit(n);
}

double slowest(const Links& links) {
  return std::ranges::min(links.bytes_per_s);
}

// The longest of kShortest, twice that, … for which `better` still holds.
template <typename Predicate>
std::uint64_t longest_for(Predicate better) {
  std::uint64_t bytes = 0;
  for (std::uint64_t next = kShortest; next <= kLongest && better(next); next *= 2) bytes = next;
  return bytes;
}

double weighted_seconds(double bytes, const Links& links) {
  const auto weights = weights_for(links.bytes_per_s);
  const double n = static_cast<double>(weights.size());
  double longest = 0;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    const double share = static_cast<double>(weights[r]) / kWholeWeight;
    longest = std::max(longest, (1 + (n - 2) * share) / links.bytes_per_s[r]);
  }
  // Two steps, but in each a message to every other rank: half of them are taken to overlap.
  return (n - 1) * links.latency_s + bytes * longest;
}

}  // namespace

Algorithm LinkPlan::choose(std::size_t bytes) const {
  if (bytes <= short_bytes) return Algorithm::recursive_doubling;
  if (bytes <= middle_bytes) return Algorithm::halving_doubling;
  return weights.empty() ? Algorithm::ring : Algorithm::weighted;
}

double predicted_seconds(Algorithm algorithm, double bytes, const Links& links) {
  const auto n = links.bytes_per_s.size();
  const double steps = std::floor(std::log2(static_cast<double>(n)));
  const double all = bytes / slowest(links);  // the whole message over the slowest link
  const double least = 2 * (static_cast<double>(n) - 1) / static_cast<double>(n) * all;
  // The ranks beyond a power of two hand over the whole message, and get it back.
  const double pairing = power_of_two(n) ? 0 : 2 * (links.latency_s + all);
  switch (algorithm) {
    case Algorithm::recursive_doubling: return steps * (links.latency_s + all) + pairing;
    case Algorithm::halving_doubling: return 2 * steps * links.latency_s + least + pairing;
    case Algorithm::tree:
      return 2 * std::ceil(std::log2(static_cast<double>(n))) * (links.latency_s + all);
    case Algorithm::weighted: return weighted_seconds(bytes, links);
    case Algorithm::automatic:
    case Algorithm::ring:
    case Algorithm::two_level: break;
  }
  return 2 * (static_cast<double>(n) - 1) * links.latency_s + least;
}

LinkPlan plan_for(const Links& links) {
  const auto seconds = [&](Algorithm algorithm, std::uint64_t bytes) {
    return predicted_seconds(algorithm, static_cast<double>(bytes), links);
  };
  LinkPlan plan;
  const double weighted = seconds(Algorithm::weighted, kLongest);
  Algorithm longest = Algorithm::ring;
  if (weighted < kWorthWeights * seconds(Algorithm::ring, kLongest)) {
    plan.weights = weights_for(links.bytes_per_s);
    longest = Algorithm::weighted;
  }
  plan.short_bytes = longest_for([&](std::uint64_t bytes) {
    return seconds(Algorithm::recursive_doubling, bytes) <=
           std::min(seconds(Algorithm::halving_doubling, bytes), seconds(longest, bytes));
  });
  plan.middle_bytes = longest_for([&](std::uint64_t bytes) {
    return seconds(Algorithm::halving_doubling, bytes) < kWorthHalving * seconds(longest, bytes);
  });
  return plan;
}

LinkPlan plan_for_one_host(int size) {
  LinkPlan plan;
  plan.short_bytes = std::uint64_t{32} << 10;
  if (size >= 4 && power_of_two(static_cast<std::size_t>(size))) {
    plan.middle_bytes = std::uint64_t{256} << 10;
  }
  return plan;
}

}  // namespace bimetal::comm
