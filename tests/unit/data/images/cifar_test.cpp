#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>

#include "bimetal/base/error.h"
#include "bimetal/data/images/dataset.h"
#include "support/errors.h"
#include "unit/data/idx_files.h"

namespace bimetal::data {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPixels = 3072;

/// Images of one colour for each label: red is 10 × the label, green 1, blue 2.
test::Bytes records(const std::vector<int>& labels) {
  test::Bytes bytes;
  for (const int label : labels) {
    bytes.push_back(static_cast<std::uint8_t>(label));
    for (const int value : {10 * label, 1, 2}) {
      bytes.insert(bytes.end(), kPixels / 3, static_cast<std::uint8_t>(value));
    }
  }
  return bytes;
}

class Cifar : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int part = 1; part <= 5; ++part) {
      test::write_file(folder_ / ("data_batch_" + std::to_string(part) + ".bin"),
                       records({part, part + 1}));
    }
    test::write_gzip(folder_ / "test_batch.bin.gz", records({9, 0, 4}));
  }

  std::string failure() {
    return expect_error(ErrorCode::CorruptData, {},
                        [&] { load_dataset("cifar-10", folder_.path()); })
        .what();
  }

  test::TemporaryFolder folder_;
};

TEST_F(Cifar, LoadsAllPartsInTheirOrder) {
  const auto sets = load_dataset("cifar-10", folder_.path());
  EXPECT_EQ(sets.train.images.sizes().vec(), (std::vector<std::int64_t>{10, 3, 32, 32}));
  EXPECT_TRUE(
      sets.train.labels.equal(torch::tensor({1, 2, 2, 3, 3, 4, 4, 5, 5, 6}, torch::kInt64)));
  EXPECT_TRUE(sets.test.labels.equal(torch::tensor({9, 0, 4}, torch::kInt64)));
  EXPECT_EQ(sets.train.images[9][0][31][31].item<int>(), 60);
  EXPECT_EQ(sets.train.images[9][1][0][0].item<int>(), 1);
  EXPECT_EQ(sets.test.images[2][2][5][5].item<int>(), 2);
  EXPECT_EQ(sets.test.mean, sets.train.mean);
  ASSERT_EQ(sets.train.mean.size(), 3u);
  const double means[] = {35.0, 1, 2};
  for (int channel = 0; channel < 3; ++channel) {
    EXPECT_NEAR(sets.train.mean[channel], means[channel] / 255, 1e-12);
  }
  const auto red = sets.train.images.select(1, 0).to(torch::kFloat64) / 255;
  EXPECT_NEAR(sets.train.stddev[0], red.std(/*unbiased=*/false).item<double>(), 1e-12);
  EXPECT_EQ(sets.train.stddev[1], 1) << "a channel that is the same everywhere";
}

TEST_F(Cifar, EachChannelIsNormalisedByItself) {
  const auto files = find_dataset("cifar-10", folder_.path());
  const auto set = load_dataset(files, {.mean = {0.1, 0.2, 0.3}, .stddev = {0.5, 0.25, 2}}).test;
  const auto batch = make_batch(set, torch::tensor({2, 0}, torch::kInt64), torch::kFloat64);
  const auto pixels = set.images.index_select(0, torch::tensor({2, 0}, torch::kInt64));
  const auto mean = torch::tensor({0.1, 0.2, 0.3}, torch::kFloat64).view({3, 1, 1});
  const auto stddev = torch::tensor({0.5, 0.25, 2.0}, torch::kFloat64).view({3, 1, 1});
  const auto expected = (pixels.to(torch::kFloat64) / 255.0 - mean) / stddev;
  EXPECT_TRUE(torch::equal(batch.x, expected));
  const auto one = load_dataset(files, {.mean = {0.5}}).train;
  EXPECT_EQ(one.mean, std::vector<double>{0.5});
  EXPECT_EQ(one.stddev.size(), 3u) << "measured all the same";
}

TEST_F(Cifar, AsManyMeansAsChannelsAreWanted) {
  expect_error(ErrorCode::InvalidArgument, {"data.mean has 2 numbers, and the images 3 channels"},
               [&] {
                 load_dataset(find_dataset("cifar-10", folder_.path()), {.mean = {0.1, 0.2}});
               });
}

TEST_F(Cifar, DamagedFilesAreNamed) {
  auto bytes = records({1, 2});
  bytes.pop_back();
  test::write_file(folder_ / "data_batch_3.bin", bytes);
  EXPECT_THAT(failure(), HasSubstr("data_batch_3.bin' is no sound file of CIFAR-10: it has 6145"));
  test::write_file(folder_ / "data_batch_3.bin", {});
  EXPECT_THAT(failure(), HasSubstr("it has 0 bytes"));
  test::write_file(folder_ / "data_batch_3.bin", records({1, 10}));
  EXPECT_THAT(failure(), HasSubstr("a label 10, but there are 10 classes"));
}

}  // namespace
}  // namespace bimetal::data
