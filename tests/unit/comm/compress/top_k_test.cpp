#include "bimetal/comm/compress/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "unit/comm/compress/sample_values.h"

namespace bimetal::comm {
namespace {

// The same by sorting everything.
std::vector<std::uint32_t> reference(const std::vector<float>& values, std::size_t k) {
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<std::byte> list(std::vector<std::uint32_t> indices, std::vector<float> values) {
  std::vector<std::byte> bytes(8 * indices.size());
  std::ranges::copy(std::as_bytes(std::span(indices)), bytes.begin());
  std::ranges::copy(std::as_bytes(std::span(values)), bytes.begin() + 4 * indices.size());
  return bytes;
}

TEST(TopK, ChoosesTheLargest) {
  for (const std::size_t count : kSampleCounts) {
    for (const auto& [name, values] : finite_samples(count)) {
      for (const std::size_t k : {std::size_t{0}, std::size_t{1}, count / 100, count / 3, count}) {
        if (k > count) continue;
        ASSERT_EQ(largest_elements(values, k), reference(values, k))
            << k << " of " << count << " " << name;
      }
    }
  }
}

TEST(TopK, WhatIsNotFiniteComesFirst) {
  std::vector<float> values(100, 3e38f);
  values[20] = std::numeric_limits<float>::infinity();
  values[50] = -std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(largest_elements(values, 1), (std::vector<std::uint32_t>{50}));
  EXPECT_EQ(largest_elements(values, 2), (std::vector<std::uint32_t>{20, 50}));
}

TEST(TopK, AStrangersListIsRefusedWhole) {
  std::vector<float> sums(10, 1.0f);
  const auto untouched = sums;
  for (const auto& bytes : {list({10}, {1}), list({0xffffffffu}, {1}), list({1, 10}, {1, 1}),
                            list({3, 3}, {1, 1}), list({4, 3}, {1, 1}),
                            list({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, std::vector<float>(11, 1))}) {
    EXPECT_EQ(code_of([&] { add_list(bytes, sums); }), ErrorCode::CorruptData);
    EXPECT_EQ(sums, untouched);
  }
  for (std::size_t length = 1; length < 8; ++length) {
    EXPECT_EQ(code_of([&] { add_list(std::vector<std::byte>(length), sums); }),
              ErrorCode::CorruptData);
  }
  EXPECT_EQ(sums, untouched);
}

TEST(TopK, RandomBytesNeverReachBeyondTheSums) {
  std::mt19937 random(3);
  std::vector<float> sums(64, 0.0f);
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(8 * (1 + random() % 3));
    // Small numbers, so that some lists pass.
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() % 8 == 0 ? random() : 0);
    taken += code_of([&] { add_list(bytes, sums); }) != ErrorCode::CorruptData;
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 20000);
}

TEST(TopK, WarmUpFallsInFourStages) {
  const double at[] = {0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.00390625, 0.00390625};
  for (int step = 0; step < 8; ++step) EXPECT_EQ(warmup_density(0.001, step, 8), at[step]);
  EXPECT_EQ(warmup_density(0.001, 8, 8), 0.001);
  EXPECT_EQ(warmup_density(0.001, 0, 0), 0.001);
  EXPECT_EQ(warmup_density(0.1, 3, 4), 0.1);  // never below the final one
}

}  // namespace
}  // namespace bimetal::comm
