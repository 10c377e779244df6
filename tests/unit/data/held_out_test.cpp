#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <set>

#include "bimetal/base/error.h"
#include "bimetal/data/held_out.h"

namespace bimetal::data {
namespace {

TEST(HeldOut, EverySampleIsInOnePart) {
  for (const double part : {0.001, 0.1, 0.5, 0.999}) {
    const auto parts = hold_out(1000, part, 7);
    EXPECT_EQ(std::ssize(parts.validation), std::clamp<std::int64_t>(1000 * part, 1, 999)) << part;
    std::set<std::int64_t> all(parts.training.begin(), parts.training.end());
    EXPECT_EQ(std::ssize(all), std::ssize(parts.training));
    all.insert(parts.validation.begin(), parts.validation.end());
    EXPECT_EQ(all.size(), 1000u);
    EXPECT_EQ(*all.begin(), 0);
    EXPECT_EQ(*all.rbegin(), 999);
    EXPECT_TRUE(std::ranges::is_sorted(parts.training));
    EXPECT_TRUE(std::ranges::is_sorted(parts.validation));
  }
}

TEST(HeldOut, TheSeedDecides) {
  EXPECT_EQ(hold_out(1000, 0.1, 7).validation, hold_out(1000, 0.1, 7).validation);
  EXPECT_NE(hold_out(1000, 0.1, 7).validation, hold_out(1000, 0.1, 8).validation);
}

TEST(HeldOut, IsDrawnFromAllOfThem) {
  const auto held = hold_out(1000, 0.1, 7).validation;
  // Uniform: the mean is 499.5, its standard deviation 27.
  double sum = 0;
  for (const auto sample : held) sum += static_cast<double>(sample);
  EXPECT_NEAR(sum / 100, 499.5, 170);
}

TEST(HeldOut, BothPartsHaveASampleAtLeast) {
  EXPECT_EQ(hold_out(2, 0.01, 1).validation.size(), 1u);
  EXPECT_EQ(hold_out(2, 0.99, 1).training.size(), 1u);
  EXPECT_THROW(hold_out(1, 0.5, 1), Error);
}

/// Each image holds its own number, and so does its label.
ImageDataset numbered(std::int64_t size) {
  ImageDataset set;
  set.labels = torch::arange(size, torch::kInt64);
  set.images = set.labels.view({size, 1, 1, 1}).to(torch::kUInt8);
  set.mean = {0.25};
  return set;
}

TEST(Bootstrap, DrawsWithReplacementAndKeepsImagesWithTheirLabels) {
  const auto drawn = bootstrap(numbered(250), 7);
  EXPECT_EQ(drawn.size(), 250);
  EXPECT_EQ(drawn.mean, std::vector<double>{0.25});
  EXPECT_TRUE(drawn.images.flatten().to(torch::kInt64).equal(drawn.labels));
  const auto different = std::get<0>(at::_unique2(drawn.labels)).size(0);
  // 1 − 1/e of 250 is 158; six standard deviations are 32.
  EXPECT_GT(different, 126);
  EXPECT_LT(different, 190);
}

TEST(Bootstrap, TheSeedDecides) {
  const auto set = numbered(250);
  EXPECT_TRUE(bootstrap(set, 7).labels.equal(bootstrap(set, 7).labels));
  EXPECT_FALSE(bootstrap(set, 7).labels.equal(bootstrap(set, 8).labels));
}

}  // namespace
}  // namespace bimetal::data
