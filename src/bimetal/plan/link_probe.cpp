#include "bimetal/plan/link_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::plan {
namespace {

constexpr int kLatencyRuns = 25;
constexpr int kBandwidthRuns = 5;
constexpr std::uint64_t kSmallestBuffer = 256 << 10;
constexpr std::uint64_t kFirstBuffer = 1 << 20;
constexpr std::uint64_t kLargestBuffer = 64 << 20;
constexpr int kPairLatencyRuns = 15, kPairRuns = 3;
constexpr std::uint64_t kPairFirstBytes = 128 << 10, kPairBytes = 1 << 20;
constexpr std::uint64_t kProbeTag = 0x70726f6265;  // "probe"
constexpr double kLongEnough = 0.05;               // seconds: a larger buffer would not tell more

// The largest of the ranks' figures: all ranks thus decide alike.
double slowest(comm::Group& group, double seconds) {
  std::array<double, 1> value = {seconds};
  group.all_reduce(comm::buffer(std::span(value)), comm::ReduceOp::max).wait();
  return value[0];
}

double all_reduce_seconds(comm::Group& group, std::uint64_t bytes, int runs) {
  std::vector<float> data(bytes / sizeof(float));
  std::vector<double> seconds;
  group.all_reduce(comm::buffer(std::span(data))).wait();  // buffers and windows grow
  for (int run = 0; run < runs; ++run) {
    const Stopwatch watch;
    group.all_reduce(comm::buffer(std::span(data))).wait();
    seconds.push_back(watch.seconds());
  }
  std::ranges::nth_element(seconds, seconds.begin() + runs / 2);
  return slowest(group, seconds[static_cast<std::size_t>(runs / 2)]);
}

/// Seconds until a message of so many bytes has come to the peer, and a few bytes back. Without a
/// part in it: 0.
double round_trip(comm::Group& group, int from, int to, std::uint64_t bytes, int runs) {
  std::vector<float> data(bytes / sizeof(float)), answer(1);
  double least = 0;
  for (int run = 0; run <= runs; ++run) {
    const Stopwatch watch;
    if (group.rank() == from) {
      group.send(comm::buffer(std::span(data)), to, kProbeTag).wait();
      group.recv(comm::buffer(std::span(answer)), to, kProbeTag).wait();
      const double seconds = watch.seconds();
      if (run == 1 || (run > 1 && seconds < least)) least = seconds;  // the first one warms up
    } else if (group.rank() == to) {
      group.recv(comm::buffer(std::span(data)), from, kProbeTag).wait();
      group.send(comm::buffer(std::span(answer)), from, kProbeTag).wait();
    }
  }
  return least;
}

LinkSpeed pair_speed(comm::Group& group, int from, int to) {
  // All ranks know the time, so that all know whether more is sent.
  const auto seconds_of = [&](std::uint64_t bytes, int runs) {
    return slowest(group, round_trip(group, from, to, bytes, runs));
  };
  const double few = seconds_of(sizeof(float), kPairLatencyRuns);
  auto bytes = kPairFirstBytes;
  double many = seconds_of(bytes, kPairRuns);
  if (many < kLongEnough) many = seconds_of(bytes = kPairBytes, kPairRuns);
  const double small = std::min(few, many / 2), large = many - small;
  if (large <= 0) return {};
  return {.latency_s = small / 2, .bytes_per_s = static_cast<double>(bytes) / large};
}

}  // namespace

std::vector<LinkSpeed> probe_pairs(comm::Group group, std::span<const RankPair> pairs) {
  std::vector<LinkSpeed> speeds;
  for (const auto& [from, to] : pairs) {
    speeds.push_back(from == to ? LinkSpeed() : pair_speed(group, from, to));
  }
  return speeds;
}

std::vector<LinkSpeed> probe_pairs(comm::Group group) {
  std::vector<RankPair> pairs;
  for (int from = 0; from < group.size(); ++from) {
    for (int to = 0; to < group.size(); ++to) pairs.emplace_back(from, to);
  }
  return probe_pairs(std::move(group), pairs);
}

LinkSpeed probe_link(comm::Group group, std::uint64_t gradient_bytes) {
  if (group.size() == 1) return {};
  const std::uint64_t wanted = std::clamp(gradient_bytes, kSmallestBuffer, kLargestBuffer);
  std::uint64_t bytes = std::min(wanted, kFirstBuffer);
  double large = all_reduce_seconds(group, bytes, kBandwidthRuns);
  while (bytes < wanted && large < kLongEnough) {
    bytes = std::min(wanted, 2 * bytes);
    large = all_reduce_seconds(group, bytes, kBandwidthRuns);
  }
  // On a busy machine a single small run may last as long as a large one.
  const double small = std::min(all_reduce_seconds(group, sizeof(float), kLatencyRuns), large / 2);
  const double rounds = 2.0 * (group.size() - 1);
  return {.latency_s = small / rounds,
          .bytes_per_s = rounds * static_cast<double>(bytes) / group.size() / (large - small)};
}

LinkSpeed with_copies(const LinkSpeed& way, const HostCopies& from, const HostCopies& to) {
  if (way.bytes_per_s <= 0) return way;  // within a rank, or not known
  return {.latency_s = way.latency_s + from.latency_s + to.latency_s,
          .bytes_per_s = 1 / (1 / way.bytes_per_s + from.out_s_per_byte + to.in_s_per_byte)};
}

/// In 2(n − 1) rounds of a part in n each, which all wait for the one copy out and the one back.
LinkSpeed with_copies(const LinkSpeed& link, std::span<const HostCopies> ranks) {
  if (ranks.size() < 2 || link.bytes_per_s <= 0) return link;
  HostCopies slowest;
  for (const auto& rank : ranks) {
    slowest.latency_s = std::max(slowest.latency_s, rank.latency_s);
    slowest.out_s_per_byte = std::max(slowest.out_s_per_byte, rank.out_s_per_byte);
    slowest.in_s_per_byte = std::max(slowest.in_s_per_byte, rank.in_s_per_byte);
  }
  const auto count = static_cast<double>(ranks.size());
  const double rounds = 2 * (count - 1);
  const double copied = slowest.out_s_per_byte + slowest.in_s_per_byte;
  return {.latency_s = link.latency_s + 2 * slowest.latency_s / rounds,
          .bytes_per_s = 1 / (1 / link.bytes_per_s + copied * count / rounds)};
}

}  // namespace bimetal::plan
