#include "bimetal/data/bootstrap.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

namespace bimetal::data {
namespace {

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
