#include "bimetal/task/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>

#include "bimetal/base/error.h"

namespace bimetal::task {
namespace {

Draws of(std::vector<std::int64_t> samples, std::int64_t epoch = 0, std::uint64_t seed = 7) {
  return {seed, epoch, std::move(samples)};
}

/// Which numbers of [b, heads, rows, columns] are dropped; heads 0: [b, rows, columns].
torch::Tensor dropped_of(const Draws& draws, std::int64_t rows, std::int64_t columns,
                         std::int64_t heads = 0, double p = 0.3, std::int64_t layer = 5,
                         torch::Dtype dtype = torch::kFloat32) {
  const DrawScope scope(draws);
  const auto b = static_cast<std::int64_t>(draws.samples.size());
  const auto x = heads > 0 ? torch::ones({b, heads, rows, columns}, dtype)
                           : torch::ones({b, rows, columns}, dtype);
  return dropout_by_sample(x, p, layer).eq(0);
}

TEST(Dropout, DropsItsPartAndKeepsTheMean) {
  const DrawScope scope(of({3, 1, 4, 15, 9}));
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto y = dropout_by_sample(torch::ones({5, 100, 100}, torch::kFloat64), p, 1);
    EXPECT_NEAR(y.eq(0).to(torch::kFloat64).mean().item<double>(), p, 0.01);
    const auto kept = y.masked_select(y.ne(0));
    EXPECT_LE((kept - 1 / (1 - p)).abs().max().item<double>(), 1e-14);
  }
}

TEST(Dropout, NeighboursAreIndependent) {
  const auto mask = dropped_of(of({0}), 300, 300, 0, 0.5).to(torch::kFloat64) - 0.5;
  const auto with = [&](const torch::Tensor& a, const torch::Tensor& b) {
    return std::abs((a * b).mean().item<double>()) * 4;  // a correlation
  };
  for (const std::int64_t apart : {1, 2, 3, 4, 5}) {
    const auto rest = 300 - apart;
    EXPECT_LT(with(mask.narrow(2, 0, rest), mask.narrow(2, apart, rest)), 0.02);
    EXPECT_LT(with(mask.narrow(1, 0, rest), mask.narrow(1, apart, rest)), 0.02);
  }
}

TEST(Dropout, EachPartOfTheKeyMatters) {
  const auto mask = dropped_of(of({1, 2}), 20, 20);
  EXPECT_FALSE(mask[0].equal(mask[1]));
  EXPECT_FALSE(dropped_of(of({1, 2}, 1), 20, 20).equal(mask)) << "epoch";
  EXPECT_FALSE(dropped_of(of({1, 2}, 0, 8), 20, 20).equal(mask)) << "seed";
  EXPECT_FALSE(dropped_of(of({1, 2}), 20, 20, 0, 0.3, 6).equal(mask)) << "layer";
  const auto of_heads = dropped_of(of({1}), 20, 20, 2);
  EXPECT_FALSE(of_heads.select(1, 0).equal(of_heads.select(1, 1)));
  const auto beyond_32_bits = std::int64_t{1} << 32;
  EXPECT_FALSE(dropped_of(of({1 + beyond_32_bits}), 20, 20)[0].equal(mask[0]));
}

// The kernels that other devices use, here on the CPU's copy of them.
TEST(Dropout, DevicesDrawTheSame) {
  const DrawScope scope(of({5, std::int64_t{7} << 33, 0}, 2, 0xFFFFFFFF12345678));
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{3, 1, 9, 10}, {3, 4, 7, 7}, {3, 2, 1, 64}}) {
    EXPECT_TRUE(dropped_by_kernels(sizes, 0.4, 11, torch::kCPU)
                    .equal(dropped(sizes, 0.4, 11, torch::kCPU)));
  }
}

TEST(DrawScope, NestsAndCanBeTakenElsewhere) {
  EXPECT_EQ(current_draws(), nullptr);
  const DrawScope outer(of({1, 2, 3}));
  const auto draws = current_draws();
  {
    const DrawScope inner(draws->slice(1, 3));
    EXPECT_THAT(current_draws()->samples, ::testing::ElementsAre(2, 3));
    const DrawScope again(draws);
    EXPECT_EQ(current_draws(), draws);
  }
  EXPECT_EQ(current_draws(), draws);
  EXPECT_THROW(draws->slice(2, 4), Error);
}

TEST(DrawScope, DropoutNeedsOneOfItsSamples) {
  const auto message = [](std::int64_t samples) -> std::string {
    try {
      dropout_by_sample(torch::ones({samples, 2, 2}), 0.5, 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return {};
  };
  EXPECT_THAT(message(1), ::testing::HasSubstr("DrawScope"));
  const DrawScope scope(Draws::of_nobody(3));
  EXPECT_THAT(message(2), ::testing::HasSubstr("2 samples in a task::DrawScope of 3"));
  EXPECT_EQ(message(3), "");
}

}  // namespace
}  // namespace bimetal::task
