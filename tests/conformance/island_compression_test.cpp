// Compression of what goes from one island to another alone.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "conformance/schemes.h"
#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::CompressedLinks;
using comm::Compression;
using comm::Group;
using comm::ReduceOp;
using comm::Scheme;

std::vector<float> whole_numbers(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 211) - 105.0f;
  }
  return values;
}

Compression between(Scheme scheme) {
  return {.scheme = scheme,
          .links = CompressedLinks::between_islands,
          .density = 0.01,
          .rank = 2,
          .memory = std::make_shared<comm::BucketMemory>()};
}

std::vector<float> sum_of(int ranks, std::size_t count) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto values = whole_numbers(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

// Small whole numbers: every sum of them is exact in float32.
TEST(IslandCompression, LosesNothingWhereAllShareMemory) {
  run_ranks(make_island_groups({0, 0, 0}), [](int rank, Group group) {
    for (const Scheme scheme : kSchemes) {
      for (const std::size_t count : {0ul, 1ul, 1000ul, 300001ul}) {
        const auto how = between(scheme);
        for (int step = 0; step < 2; ++step) {
          auto data = whole_numbers(rank, count);
          group.all_reduce(buffer(data), ReduceOp::sum, how).wait();
          ASSERT_EQ(data, sum_of(3, count)) << to_string(scheme) << " of " << count;
        }
      }
    }
  });
}

// With as many elements as values, int8's blocks hold what bfloat16 would round.
TEST(IslandCompression, RoundsOncePerIslandAndNotPerRank) {
  const std::vector<int> islands = {0, 0, 0, 0, 1};
  run_ranks(make_island_groups(islands), [](int rank, Group group) {
    const std::size_t count = 70001;
    auto data = whole_numbers(rank, count);
    group.all_reduce(buffer(data), ReduceOp::avg, between(Scheme::int8)).wait();
    const auto sum = sum_of(5, count);
    // Island 0's sum is at most 420, rounded once by one of them; the whole's at most 525.
    const float bound = (420.0f + 525.0f) / 254 * 1.02f / 5;
    for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(data[i], sum[i] / 5, bound) << i;
  });
}

TEST(IslandCompression, OneRankOfAnIslandSendsForAll) {
  std::vector<double> sent(5);
  run_ranks(make_island_groups({0, 0, 1, 1, 1}), [&](int rank, Group group) {
    auto data = whole_numbers(rank, std::size_t{1} << 18);
    group.barrier().wait();
    const auto before = group.bytes_sent();
    group.all_reduce(buffer(data), ReduceOp::sum, between(Scheme::int8)).wait();
    sent[static_cast<std::size_t>(rank)] = static_cast<double>(group.bytes_sent() - before);
  });
  const double plain = static_cast<double>(sizeof(float) << 18);  // of two ranks, each way
  for (const std::size_t first : {0u, 2u}) {
    EXPECT_LT(sent[first], plain / 3.85);
    EXPECT_GT(sent[first], plain / 4.1);
  }
  for (const std::size_t other : {1u, 3u, 4u}) EXPECT_LT(sent[other], 1000);
}

TEST(IslandCompression, EveryRankGetsTheSameBitsStepAfterStep) {
  for (const Scheme scheme : kSchemes) {
    std::vector<std::vector<float>> results(5);
    run_ranks(make_island_groups({0, 1, 1, 0, 2}), [&](int rank, Group group) {
      const auto how = between(scheme);
      for (int step = 0; step < 4; ++step) {
        auto data = whole_numbers(rank + 10 * step, 5000);
        group.all_reduce(buffer(data), ReduceOp::avg, how).wait();
        results[static_cast<std::size_t>(rank)] = data;
      }
    });
    for (const auto& other : results) {
      ASSERT_EQ(std::memcmp(other.data(), results[0].data(), other.size() * sizeof(float)), 0)
          << to_string(scheme);
    }
  }
}

}  // namespace
}  // namespace bimetal::testing
