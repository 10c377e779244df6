#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {
namespace {

template <typename T>
std::vector<T> reduced(std::vector<std::vector<T>> sources, DType dtype, ReduceOp op) {
  std::vector<T> result(sources[0].size());
  std::vector<const std::byte*> from;
  for (const auto& source : sources) from.push_back(reinterpret_cast<const std::byte*>(&source[0]));
  auto* const to = reinterpret_cast<std::byte*>(result.data());
  reduce_across(from, {&to, 1}, result.size(), dtype, op);
  return result;
}

TEST(ReduceAcross, OneSourceIsCopied) {
  EXPECT_EQ(reduced<std::int64_t>({{1, -2, 3}}, DType::int64, ReduceOp::product),
            (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(reduced<float>({{5}}, DType::float32, ReduceOp::avg), std::vector<float>{5});
}

TEST(ReduceAcross, TheOrderIsThatOfTheSources) {
  const float large = 0x1p24f;
  // (1 + large) - large loses the 1; (large - large) + 1 would not.
  EXPECT_EQ(reduced<float>({{1}, {large}, {-large}}, DType::float32, ReduceOp::sum)[0], 0);
  EXPECT_EQ(reduced<float>({{large}, {-large}, {1}}, DType::float32, ReduceOp::sum)[0], 1);
}

TEST(ReduceAcross, HalvesAreRoundedOnce) {
  const auto bits = [](float value) { return Float16(value).bits; };
  // In float16 each of these additions alone would be rounded away.
  const std::vector<std::vector<std::uint16_t>> sources{
      {bits(2048)}, {bits(1)}, {bits(1)}, {bits(1)}, {bits(1)}};
  EXPECT_EQ(reduced(sources, DType::float16, ReduceOp::sum)[0], bits(2052));
  const auto brain = [](float value) { return BFloat16(value).bits; };
  const std::vector<std::vector<std::uint16_t>> more{
      {brain(256)}, {brain(1)}, {brain(1)}, {brain(1)}, {brain(1)}};
  EXPECT_EQ(reduced(more, DType::bfloat16, ReduceOp::sum)[0], brain(260));
  EXPECT_EQ(reduced(more, DType::bfloat16, ReduceOp::avg)[0], brain(52));
}

TEST(ReduceAcross, IntegersWrapAndTruncate) {
  EXPECT_EQ(reduced<std::int8_t>({{100}, {100}}, DType::int8, ReduceOp::sum)[0], -56);
  EXPECT_EQ(reduced<std::int32_t>({{-3}, {0}}, DType::int32, ReduceOp::avg)[0], -1);
  EXPECT_EQ(reduced<std::uint8_t>({{16}, {16}, {3}}, DType::uint8, ReduceOp::product)[0], 0);
}

// Any bits at all, but for NaN, whose bits differ between instructions.
TEST(ReduceAcross, EveryInstructionSetGivesTheSameBits) {
  constexpr std::size_t kBytes = 40'000;
  constexpr int kSources = 3;
  std::mt19937_64 random(5);
  std::vector<std::vector<std::byte>> sources;
  for (int s = 0; s < kSources; ++s) {
    sources.emplace_back(kBytes);
    for (auto& byte : sources.back()) byte = static_cast<std::byte>(random() & 0xbf);
    // No type's exponent has all bits set: every number is finite.
    for (std::size_t i = 1; i < kBytes; i += 2) sources.back()[i] &= std::byte{0xbb};
  }
  std::vector<const std::byte*> from;
  for (const auto& source : sources) from.push_back(source.data());
  for (const auto dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                           DType::int8, DType::int16, DType::int32, DType::int64, DType::uint8}) {
    for (const auto op :
         {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      std::vector<std::vector<std::byte>> results;
      for (const auto variant : reduce_across_variants()) {
        auto& result = results.emplace_back(kBytes);
        auto* const to = result.data();
        variant(from, {&to, 1}, kBytes / size_of(dtype), dtype, op);
        EXPECT_EQ(result, results.front()) << to_string(dtype) << ' ' << to_string(op);
      }
    }
  }
}

TEST(ReduceAcross, NothingIsWrittenBeyondTheCount) {
  for (const std::size_t count : {0, 1, 63, 1023, 1024, 1025}) {
    std::vector<double> a(count, 1), b(count, 2), result(count + 1, -1);
    const std::byte* const from[] = {reinterpret_cast<std::byte*>(a.data()),
                                     reinterpret_cast<std::byte*>(b.data())};
    auto* const to = reinterpret_cast<std::byte*>(result.data());
    reduce_across(from, {&to, 1}, count, DType::float64, ReduceOp::max);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], 2);
    EXPECT_EQ(result[count], -1);
  }
}

}  // namespace
}  // namespace bimetal::comm
