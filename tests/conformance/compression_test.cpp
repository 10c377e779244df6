// Compressed all-reduce: every scheme against the plain sum and its bound, on every mesh.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "conformance/reference.h"
#include "conformance/schemes.h"
#include "conformance/transports.h"
#include "support/errors.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::Compression;
using comm::DType;
using comm::Group;
using comm::ReduceOp;
using comm::Scheme;

const std::vector<std::size_t> kCounts =
    kSanitized ? std::vector<std::size_t>{0, 7, 70001}
               : std::vector<std::size_t>{0, 1, 2, 7, 1000, 1537, 70001};

std::vector<float> gradient(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<double> plain_sum(int size, std::size_t count) {
  std::vector<double> sum(count);
  for (int rank = 0; rank < size; ++rank) {
    const auto values = gradient(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += double{values[i]};
  }
  return sum;
}

// How far an element of the sum of `size` ranks may be off, by docs/compression.md: each rank but
// the owner rounds once, and the owner rounds the sum. Normal numbers stay within ±6.
double bound_of(Scheme scheme, int size) {
  const double n = size;
  switch (scheme) {
    case Scheme::float16: return (n * 6 + n * 6) * 0x1p-11;
    case Scheme::bfloat16: return (n * 6 + n * 6) * 0x1p-8;
    case Scheme::int8: return ((n - 1) * 6 + n * 6) / 254 * 1.02;
    case Scheme::int4: return ((n - 1) * 6 + n * 6) / 14 * 1.1;
    default: return 0;
  }
}

class Compressed : public OnWorlds {
 protected:
  // If some ranks share memory, only messages between these islands are compressed.
  comm::CompressedLinks links() const {
    return GetParam().transport == Transport::islands ? comm::CompressedLinks::between_islands
                                                      : comm::CompressedLinks::all;
  }
};

TEST_P(Compressed, SumsStayWithinTheBound) {
  std::map<std::size_t, std::vector<double>> sums;
  for (const std::size_t count : kCounts) sums[count] = plain_sum(size(), count);
  on_ranks([&](int rank, Group group) {
    for (const Scheme scheme : {Scheme::float16, Scheme::bfloat16, Scheme::int8, Scheme::int4}) {
      for (const std::size_t count : kCounts) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
          auto data = gradient(rank, count);
          group.all_reduce(buffer(data), op, Compression{.scheme = scheme, .links = links()})
              .wait();
          const auto& sum = sums.at(count);
          const double share = op == ReduceOp::avg ? 1.0 / group.size() : 1;
          const double bound = group.size() == 1 ? 1e-6 : bound_of(scheme, group.size()) * share;
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_NEAR(data[i], sum[i] * share, bound)
                << to_string(scheme) << ", element " << i << " of " << count;
          }
        }
      }
    }
  });
}

TEST_P(Compressed, SparseSumsAreExactWhereSent) {
  on_ranks([&](int rank, Group group) {
    // Everything is sent: the sum itself, up to the order of additions.
    auto data = gradient(rank, 1537);
    const Compression all{.scheme = Scheme::topk, .links = links(), .density = 1};
    group.all_reduce(buffer(data), ReduceOp::sum, all).wait();
    const auto sum = plain_sum(group.size(), data.size());
    for (std::size_t i = 0; i < data.size(); ++i) ASSERT_NEAR(data[i], sum[i], 1e-5);
    if (GetParam().transport == Transport::islands) return;
    // Each rank has one large element.
    std::vector<float> peaks(1000, 0.5f);
    peaks[100 * static_cast<std::size_t>(rank)] = 10;
    const Compression one{.scheme = Scheme::topk, .links = links(), .density = 0.001};
    group.all_reduce(buffer(peaks), ReduceOp::avg, one).wait();
    if (group.size() == 1) return;
    for (std::size_t i = 0; i < peaks.size(); ++i) {
      const bool sent = i % 100 == 0 && i / 100 < static_cast<std::size_t>(group.size());
      ASSERT_EQ(peaks[i], sent ? 10.0f / static_cast<float>(group.size()) : 0.0f) << i;
    }
  });
}

// A sum of rank 3 is within reach of PowerSGD at rank 4, whatever the ranks' shares of it are.
TEST_P(Compressed, LowRankSumsAreFound) {
  on_ranks([&](int rank, Group group) {
    const std::size_t rows = 40, cols = 70;
    std::vector<float> data(rows * cols + 5);
    std::mt19937 random(11);  // the same directions everywhere
    std::normal_distribution<float> normal;
    std::vector<double> sum(data.size());
    for (int part = 0; part < 3; ++part) {
      std::vector<float> u(rows), v(cols);
      for (float& x : u) x = normal(random);
      for (float& x : v) x = normal(random);
      for (std::size_t i = 0; i < rows * cols; ++i) {
        const float term = u[i / cols] * v[i % cols];
        data[i] += term * static_cast<float>(rank + part);
        for (int r = 0; r < group.size(); ++r) sum[i] += double{term} * (r + part);
      }
    }
    for (std::size_t i = rows * cols; i < data.size(); ++i) {
      data[i] = static_cast<float>(rank);
      sum[i] = group.size() * (group.size() - 1) / 2.0;
    }
    const Compression how{.scheme = Scheme::powersgd,
                          .links = links(),
                          .rank = 4,
                          .matrices = {{rows, cols}, {1, 5}}};
    group.all_reduce(buffer(data), ReduceOp::sum, how).wait();
    for (std::size_t i = 0; i < data.size(); ++i) {
      ASSERT_NEAR(data[i], sum[i], 1e-3 * group.size() * group.size()) << i;
    }
  });
}

// Three calls with memory, so that what is kept plays its part.
TEST_P(Compressed, AllRanksGetTheSameBits) {
  for (const Scheme scheme : kSchemes) {
    for (const std::size_t count : kCounts) {
      std::vector<std::vector<float>> results(static_cast<std::size_t>(size()));
      on_ranks([&](int rank, Group group) {
        const Compression how{.scheme = scheme,
                              .links = links(),
                              .density = 0.01,
                              .momentum = 0.5,
                              .rank = 2,
                              .memory = std::make_shared<comm::BucketMemory>()};
        for (int step = 0; step < 3; ++step) {
          auto data = gradient(rank + 10 * step, count);
          group.all_reduce(buffer(data), ReduceOp::avg, how).wait();
          results[static_cast<std::size_t>(rank)] = data;
        }
      });
      for (const auto& other : results) {
        ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(other)),
                                       std::as_bytes(std::span(results[0]))))
            << to_string(scheme) << " × " << count;
      }
    }
  }
}

TEST_P(Compressed, EveryFloatingTypeIsTaken) {
  on_ranks([&](int rank, Group group) {
    for (const DType dtype : {DType::float64, DType::float16, DType::bfloat16}) {
      for (const Scheme scheme : kSchemes) {
        Array data(1000, dtype);
        for (std::size_t i = 0; i < data.size(); ++i) data.set(i, i < 10 ? rank + 1 : 0);
        const Compression how{.scheme = scheme, .links = links(), .density = 0.01, .rank = 2};
        group.all_reduce(data.buffer(), ReduceOp::sum, how).wait();
        const double sum = group.size() * (group.size() + 1) / 2.0;
        if (scheme == Scheme::sign) continue;  // right in sign and mean alone
        for (std::size_t i = 0; i < data.size(); ++i) {
          ASSERT_NEAR(data.get(i), i < 10 ? sum : 0, 0.02 * sum)
              << to_string(scheme) << " of " << to_string(dtype) << ", element " << i;
        }
      }
    }
  });
}

// And it does not come back: the calls after it are sound.
TEST_P(Compressed, NotANumberReachesEveryRankOnce) {
  on_ranks([&](int rank, Group group) {
    for (const Scheme scheme : kSchemes) {
      for (const float odd :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const Compression how{.scheme = scheme,
                              .links = links(),
                              .density = 0.01,
                              .momentum = 0.9,
                              .rank = 2,
                              .memory = std::make_shared<comm::BucketMemory>()};
        for (int step = 0; step < 4; ++step) {
          auto data = gradient(rank, 2000);
          if (step == 1 && rank == group.size() / 2) {
            for (std::size_t i = 700; i < 800; ++i) data[i] = odd;
          }
          group.all_reduce(buffer(data), ReduceOp::sum, how).wait();
          const bool finite = std::ranges::all_of(data, [](float x) { return std::isfinite(x); });
          ASSERT_EQ(finite, step != 1) << to_string(scheme) << ", step " << step << ", " << odd;
        }
      }
    }
  });
}

TEST_P(Compressed, FewerBytesTravel) {
  on_ranks([&](int rank, Group group) {
    // Only one rank of an island sends: islands_test.cpp.
    if (group.size() == 1 || GetParam().transport == Transport::islands) return;
    const std::size_t count = std::size_t{1} << 18;
    std::vector<float> data(count);
    const auto bytes_of = [&](const Compression& how) {
      data = gradient(rank, count);
      group.barrier().wait();
      const auto before = group.bytes_sent();
      group.all_reduce(buffer(data), ReduceOp::sum, how).wait();
      return static_cast<double>(group.bytes_sent() - before);
    };
    // The bytes that a ring moves. Measured, they would be 0 if ranks share memory.
    const double n = group.size();
    const double plain = 2 * (n - 1) / n * static_cast<double>(count * sizeof(float));
    const std::pair<Scheme, double> ratios[] = {{Scheme::float16, 1.98}, {Scheme::bfloat16, 1.98},
                                                {Scheme::int8, 3.85},    {Scheme::int4, 7.4},
                                                {Scheme::sign, 25},      {Scheme::powersgd, 20}};
    for (const auto& [scheme, ratio] : ratios) {
      EXPECT_GT(plain / bytes_of({.scheme = scheme, .links = links()}), ratio) << to_string(scheme);
    }
    // Lists go to every other rank.
    EXPECT_GT(plain / bytes_of({.scheme = Scheme::topk, .links = links(), .density = 0.001}),
              700 / group.size());
  });
}

TEST_P(Compressed, IntegersAreRefusedAtOnce) {
  on_ranks([&](int rank, Group group) {
    std::vector<std::int32_t> data(10, 1);
    expect_error(ErrorCode::InvalidArgument, {}, [&] {
      group.all_reduce(buffer(data), ReduceOp::sum,
                       Compression{.scheme = Scheme::int8, .links = links()});
    });
    group.all_reduce(buffer(data)).wait();  // the group is as good as before
    EXPECT_EQ(data[0], group.size());
  });
}

class CompressionMismatch : public OnWorlds {
 protected:
  void expect_mismatch(const Compression& usual, const Compression& other,
                       const std::string& usual_text, const std::string& other_text) {
    on_ranks([&](int rank, Group group) {
      auto data = gradient(rank, 5000);
      const auto deadline = Deadline::after(std::chrono::minutes(5));
      expect_error(
          ErrorCode::CallMismatch,
          {usual_text, other_text, "rank " + std::to_string(group.size() - 1)}, [&] {
            const bool odd_one = rank == group.size() - 1;
            group.all_reduce(buffer(data), ReduceOp::sum, odd_one ? other : usual, deadline).wait();
            group.barrier(deadline).wait();
          });
    });
  }
};

TEST_P(CompressionMismatch, OfTheScheme) {
  expect_mismatch({.scheme = Scheme::int8}, {}, "all_reduce(sum, int8) of 5000 float32",
                  "all_reduce(sum) of 5000 float32");
  expect_mismatch({.scheme = Scheme::int8}, {.scheme = Scheme::int4}, "(sum, int8)", "(sum, int4)");
}

TEST_P(CompressionMismatch, OfTheDensity) {
  expect_mismatch({.scheme = Scheme::topk, .density = 0.01},
                  {.scheme = Scheme::topk, .density = 0.1}, "topk with 50 elements",
                  "topk with 500 elements");
}

TEST_P(CompressionMismatch, OfTheRank) {
  expect_mismatch({.scheme = Scheme::powersgd, .rank = 4}, {.scheme = Scheme::powersgd, .rank = 2},
                  "powersgd of rank 4", "powersgd of rank 2");
}

TEST_P(CompressionMismatch, OfTheLinks) {
  expect_mismatch({.scheme = Scheme::int8},
                  {.scheme = Scheme::int8, .links = comm::CompressedLinks::between_islands},
                  "(sum, int8)", "(sum, int8 between islands)");
}

INSTANTIATE_TEST_SUITE_P(Worlds, Compressed, ::testing::ValuesIn(worlds({1, 2, 3, 5, 8})),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Worlds, CompressionMismatch, ::testing::ValuesIn(worlds({2, 3})),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing
