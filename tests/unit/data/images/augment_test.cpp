
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <array>
#include <vector>

#include "bimetal/data/images/dataset.h"

namespace bimetal::data {
namespace {

using Samples = std::vector<std::int64_t>;

torch::Tensor some_images() {
  torch::manual_seed(1);
  return torch::randint(1, 256, {20, 3, 8, 11}, torch::kUInt8);
}

// Out of a padded image, by torch's own functions.
torch::Tensor cropped_slowly(const torch::Tensor& image, const Crop& crop) {
  const auto padded = torch::constant_pad_nd(image, {4, 4, 4, 4});
  const auto part =
      padded.narrow(1, 4 - crop.down, image.size(1)).narrow(2, 4 - crop.right, image.size(2));
  return crop.flipped ? part.flip({2}) : part;
}

TEST(Augmentation, IsACropOfThePaddedImagePerhapsFlipped) {
  const auto images = some_images();
  Samples samples;
  for (std::int64_t i = 0; i < 200; ++i) samples.push_back(i * 7 % 20);
  const task::Draws draws{.seed = 5, .epoch = 2};
  const auto changed = augmented(images, samples, draws);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto expected = cropped_slowly(images[samples[i]], draw_crop(draws, samples[i]));
    EXPECT_TRUE(changed[static_cast<std::int64_t>(i)].equal(expected)) << i;
  }
}

TEST(Augmentation, EveryPlaceIsDrawnAboutEquallyOften) {
  constexpr std::int64_t count = 81'000;
  std::array<int, 9> down{}, right{};
  int flipped = 0;
  for (std::int64_t sample = 0; sample < count; ++sample) {
    const auto crop = draw_crop({.seed = 3, .epoch = 1}, sample);
    ++down.at(static_cast<std::size_t>(crop.down + 4));
    ++right.at(static_cast<std::size_t>(crop.right + 4));
    flipped += crop.flipped ? 1 : 0;
  }
  // Five deviations of a binomial distribution are 470 and 711.
  for (const int times : down) EXPECT_NEAR(times, 9000, 470);
  for (const int times : right) EXPECT_NEAR(times, 9000, 470);
  EXPECT_NEAR(flipped, count / 2, 711);
}

TEST(Augmentation, DependsOnSeedEpochAndSample) {
  int same_epoch = 0, same_seed = 0, same_sample = 0;
  for (std::int64_t sample = 0; sample < 1000; ++sample) {
    const auto crop = draw_crop({.seed = 3, .epoch = 1}, sample);
    EXPECT_EQ(crop, draw_crop({.seed = 3, .epoch = 1, .samples = {9, 9}}, sample));
    same_epoch += crop == draw_crop({.seed = 3, .epoch = 2}, sample) ? 1 : 0;
    same_seed += crop == draw_crop({.seed = 4, .epoch = 1}, sample) ? 1 : 0;
    same_sample += crop == draw_crop({.seed = 3, .epoch = 1}, sample + 1) ? 1 : 0;
  }
  for (const int same : {same_epoch, same_seed, same_sample}) EXPECT_LT(same, 30);  // 1000 ÷ 162
}

ImageDataset some_set() {
  ImageDataset set;
  set.images = some_images();
  set.labels = torch::arange(20).remainder(10);
  set.mean = {0.4, 0.5, 0.6};
  set.stddev = {0.3};
  return set;
}

TEST(AugmentedSet, ChangesNothingOutsideOfTrainingOrUnasked) {
  const ImageSet augmenting(some_set(), torch::kFloat64, Augment::Yes);
  const ImageSet plain(some_set(), torch::kFloat64);
  const Samples all = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto expected = plain.batch(all)[0];
  EXPECT_TRUE(augmenting.batch(all)[0].equal(expected));
  const task::DrawScope scope(task::Draws{.seed = 8});
  EXPECT_TRUE(plain.batch(all)[0].equal(expected));
  EXPECT_FALSE(augmenting.batch(all)[0].equal(expected));
}

}  // namespace
}  // namespace bimetal::data
