#include "bimetal/plan/link_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "bimetal/base/stopwatch.h"

namespace bimetal::plan {
namespace {

constexpr int kLatencyRuns = 25;
constexpr int kBandwidthRuns = 5;
constexpr std::uint64_t kSmallestBuffer = 256 << 10;
constexpr std::uint64_t kFirstBuffer = 1 << 20;
constexpr std::uint64_t kLargestBuffer = 64 << 20;
constexpr double kLongEnough = 0.05;  // seconds: a larger buffer would not tell more

// The largest of the ranks' figures: what is decided by it is decided alike everywhere.
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

}  // namespace

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

}  // namespace bimetal::plan
