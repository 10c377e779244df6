#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "portability/fabric_checks.h"

namespace bimetal::testing {
namespace {

using comm::Compression;
using comm::ReduceOp;
using comm::Scheme;

constexpr Scheme kSchemes[] = {Scheme::float16, Scheme::bfloat16, Scheme::int8, Scheme::int4,
                               Scheme::topk,    Scheme::powersgd, Scheme::sign};
constexpr std::size_t kLengths[] = {1, 1000, 70001};
constexpr int kSteps = 3;  // with memory, so that what is kept plays its part

/// Numbers that are the same on every system (Numerical Recipes, section 7.1, an even quicker
/// generator), from -1 to 1.
class Numbers {
 public:
  explicit Numbers(int seed) : state_(static_cast<std::uint32_t>(seed)) {}

  float next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<std::int32_t>(state_)) * 0x1p-31f;
  }

 private:
  std::uint32_t state_;
};

std::vector<float> gradient(int rank, int step, std::size_t count) {
  Numbers numbers(rank * 16 + step);
  std::vector<float> values(count);
  for (float& value : values) value = numbers.next();
  return values;
}

/// How far an average may be off (docs/compression.md): each rank rounds once, and the owner the
/// sum. Nothing is said of the schemes that leave most of it to later calls.
double bound_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::float16: return 2 * 0x1p-11;
    case Scheme::bfloat16: return 2 * 0x1p-8;
    case Scheme::int8: return 2.0 / 254 * 1.02;
    case Scheme::int4: return 2.0 / 14 * 1.1;
    default: return INFINITY;
  }
}

bool near_average(const std::vector<float>& data, int size, double bound) {
  std::vector<double> sum(data.size());
  for (int rank = 0; rank < size; ++rank) {
    const auto values = gradient(rank, 0, data.size());
    for (std::size_t i = 0; i < data.size(); ++i) sum[i] += double{values[i]};
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (!(std::abs(data[i] - sum[i] / size) <= bound)) return false;
  }
  return true;
}

/// Whether `data` has the same bits on all ranks.
template <typename T>
bool same_everywhere(comm::Group group, const std::vector<T>& data) {
  const std::size_t count = data.size();
  std::vector<T> all(count * static_cast<std::size_t>(group.size()));
  group.all_gather(comm::buffer(data), comm::buffer(all)).wait();
  for (int rank = 0; rank < group.size(); ++rank) {
    const T* const theirs = all.data() + count * static_cast<std::size_t>(rank);
    if (std::memcmp(theirs, data.data(), count * sizeof(T)) != 0) return false;
  }
  return true;
}

}  // namespace

int check_compression(comm::Group group, const OnWrong& wrong) {
  int calls = 0;
  for (const Scheme scheme : kSchemes) {
    for (const std::size_t count : kLengths) {
      const Compression how{.scheme = scheme,
                            .density = 0.01,
                            .momentum = 0.5,
                            .rank = 2,
                            .memory = std::make_shared<comm::BucketMemory>()};
      for (int step = 0; step < kSteps; ++step, ++calls) {
        auto data = gradient(group.rank(), step, count);
        group.all_reduce(comm::buffer(data), ReduceOp::avg, how).wait();
        const auto call =
            fmt::format("all_reduce of {} by {}, call {}", count, to_string(scheme), step);
        if (!same_everywhere(group, data)) wrong(call + ": not the same bits on all ranks");
        if (step == 0 && !near_average(data, group.size(), bound_of(scheme))) {
          wrong(call + ": beyond its bound");
        }
      }
    }
  }
  return calls;
}

int check_shares(comm::Group group, const OnWrong& wrong) {
  constexpr int kDevices = 3;
  constexpr int kBatches = 200;
  balance::BalancerOptions options;
  options.global_batch = 256;
  balance::Balancer balancer(options, std::vector<balance::Device>(kDevices));
  Numbers numbers(7);
  std::vector<std::int64_t> shares;
  std::vector<double> rates;
  int moves = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    // Devices at 1 : 1/2 : 1/4 with noise, the first of which becomes the slowest half way.
    std::vector<balance::StepFigures> figures(kDevices);
    for (int device = 0; device < kDevices; ++device) {
      const int pace = device == 0 && batch >= kBatches / 2 ? 8 : 1 << device;
      auto& figure = figures[static_cast<std::size_t>(device)];
      figure.batch = balancer.shares()[static_cast<std::size_t>(device)];
      // In whole numbers, as far as a processor could fuse a multiplication and an addition.
      const std::int64_t noise = 1000 + static_cast<std::int64_t>(100 * numbers.next());
      figure.compute_seconds =
          static_cast<double>((10'000 + 1000 * pace * figure.batch) * noise) * 1e-9;
    }
    moves += balancer.observe(figures) ? 1 : 0;
    shares.insert(shares.end(), balancer.shares().begin(), balancer.shares().end());
    for (int device = 0; device < kDevices; ++device) rates.push_back(balancer.alone_rate(device));
  }
  if (moves < 2) wrong("the shares did not follow the devices' speeds");
  if (!same_everywhere(group, shares))
    wrong("ranks derived different shares from the same figures");
  if (!same_everywhere(group, rates)) wrong("ranks derived different rates from the same figures");
  return 1;
}

}  // namespace bimetal::testing
