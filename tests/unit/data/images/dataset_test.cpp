#include "bimetal/data/images/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>

#include "bimetal/base/error.h"
#include "support/environment.h"
#include "support/errors.h"
#include "unit/data/idx_files.h"

namespace bimetal::data {
namespace {

using bimetal::test::Environment;
using test::counting;
using test::idx_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A sound data set of 7 images for training and 3 for testing, 2 × 4 pixels each.
void write_dataset(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  test::write_gzip(folder / "train-images-idx3-ubyte.gz", idx_bytes({7, 2, 4}, counting(56)));
  test::write_file(folder / "train-labels-idx1-ubyte", idx_bytes({7}, counting(7)));
  test::write_file(folder / "t10k-images-idx3-ubyte", idx_bytes({3, 2, 4}, counting(24)));
  test::write_gzip(folder / "t10k-labels-idx1-ubyte.gz", idx_bytes({3}, counting(3)));
}

class Dataset : public ::testing::Test {
 protected:
  void SetUp() override { write_dataset(folder_.path()); }

  std::string failure(ErrorCode code, const std::string& name, const std::filesystem::path& path) {
    return expect_error(code, {}, [&] { load_dataset(name, path); }).what();
  }

  test::TemporaryFolder folder_;
};

TEST_F(Dataset, ConstantImagesDoNotDivideByZero) {
  test::write_gzip(folder_ / "train-images-idx3-ubyte.gz",
                   idx_bytes({7, 2, 4}, test::Bytes(56, 9)));
  const TrainTest sets = load_dataset("mnist", folder_.path());
  EXPECT_TRUE(
      make_batch(sets.train, torch::arange(7), torch::kFloat32).x.isfinite().all().item<bool>());
}

TEST_F(Dataset, IsFoundInTheUsualPlaces) {
  test::TemporaryFolder root, home;
  const Environment nowhere("HOME", home.path().string());
  const Environment data("BIMETAL_DATA", root.path().string());
  EXPECT_THAT(failure(ErrorCode::InvalidArgument, "mnist", {}),
              AllOf(HasSubstr((root / "mnist").string()), HasSubstr("/.cache/bimetal/mnist"),
                    HasSubstr("/usr/share/datasets/mnist"), HasSubstr("https://")));
  write_dataset(home / ".cache/bimetal/mnist");
  EXPECT_EQ(load_dataset("mnist", {}).train.size(), 7);
  write_dataset(root / "mnist");
  test::write_file(root / "mnist/train-labels-idx1-ubyte", idx_bytes({7}, test::Bytes(7, 4)));
  EXPECT_EQ(load_dataset("mnist", {}).train.labels[0].item<int>(), 4) << "$BIMETAL_DATA is first";
}

TEST_F(Dataset, UnknownNamesGetTheNearest) {
  EXPECT_THAT(failure(ErrorCode::InvalidArgument, "fashion_mnst", {}),
              HasSubstr("did you mean 'fashion-mnist'"));
}

TEST_F(Dataset, NamesEachMissingFile) {
  for (const char* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte",
                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz"}) {
    write_dataset(folder_.path());
    std::filesystem::remove(folder_ / name);
    EXPECT_THAT(failure(ErrorCode::InvalidArgument, "fashion-mnist", folder_.path()),
                AllOf(HasSubstr(std::string(name).substr(0, 20)),
                      HasSubstr(folder_.path().string()), HasSubstr("dataset-fashion-mnist")));
  }
  EXPECT_THAT(failure(ErrorCode::InvalidArgument, "mnist", folder_ / "absent"),
              HasSubstr((folder_ / "absent").string()));
}

TEST_F(Dataset, RefusesDamagedFiles) {
  test::write_file(folder_ / "t10k-images-idx3-ubyte", idx_bytes({3, 2, 4}, counting(23)));
  EXPECT_THAT(failure(ErrorCode::CorruptData, "mnist", folder_.path()),
              AllOf(HasSubstr("t10k-images-idx3-ubyte"), HasSubstr("truncated")));
}

TEST_F(Dataset, RefusesFilesThatDoNotBelongTogether) {
  test::write_file(folder_ / "train-labels-idx1-ubyte", idx_bytes({6}, counting(6)));
  EXPECT_THAT(failure(ErrorCode::CorruptData, "mnist", folder_.path()),
              AllOf(HasSubstr("7 images"), HasSubstr("6 labels")));
  write_dataset(folder_.path());
  test::write_file(folder_ / "t10k-images-idx3-ubyte", idx_bytes({3, 4, 4}, counting(48)));
  EXPECT_THAT(failure(ErrorCode::CorruptData, "mnist", folder_.path()),
              AllOf(HasSubstr("1x2x4"), HasSubstr("1x4x4")));
}

TEST_F(Dataset, RefusesLabelsBeyondTheClassesAndSwappedFiles) {
  test::write_file(folder_ / "train-labels-idx1-ubyte", idx_bytes({7}, test::Bytes(7, 10)));
  EXPECT_THAT(failure(ErrorCode::CorruptData, "mnist", folder_.path()), HasSubstr("label 10"));
  test::write_file(folder_ / "train-labels-idx1-ubyte", idx_bytes({7, 2, 4}, counting(56)));
  EXPECT_THAT(failure(ErrorCode::CorruptData, "mnist", folder_.path()), HasSubstr("no labels"));
  write_dataset(folder_.path());
  test::write_gzip(folder_ / "train-images-idx3-ubyte.gz", idx_bytes({7}, counting(7)));
  EXPECT_THAT(failure(ErrorCode::CorruptData, "mnist", folder_.path()), HasSubstr("no images"));
}

TEST_F(Dataset, BatchesAreTheNormalisedSamplesAskedFor) {
  const ImageDataset set = load_dataset("mnist", folder_.path()).train;
  const auto indices = torch::tensor({5, 0, 5}, torch::kInt64);
  for (const torch::Dtype dtype :
       {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    const Batch batch = make_batch(set, indices, dtype);
    const auto expected =
        ((set.images.index_select(0, indices).to(torch::kFloat64) / 255.0 - set.mean.at(0)) /
         set.stddev.at(0))
            .to(dtype);
    EXPECT_EQ(batch.x.scalar_type(), dtype);
    EXPECT_TRUE(torch::equal(batch.x, expected));
    EXPECT_TRUE(torch::equal(batch.y, indices));  // the labels of this set count up
  }
}

TEST_F(Dataset, BatchesMayBeEmpty) {
  const ImageDataset set = load_dataset("mnist", folder_.path()).train;
  const Batch batch = make_batch(set, torch::empty({0}, torch::kInt64), torch::kFloat64);
  EXPECT_EQ(batch.x.sizes().vec(), (std::vector<std::int64_t>{0, 1, 2, 4}));
  EXPECT_EQ(batch.y.sizes().vec(), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(batch.y.scalar_type(), torch::kInt64);
}

TEST_F(Dataset, BatchesRefuseWhatCannotBe) {
  const ImageDataset set = load_dataset("mnist", folder_.path()).train;
  const auto refusal = [&](const torch::Tensor& indices, torch::Dtype dtype) {
    return code_of([&] { make_batch(set, indices, dtype); });
  };
  EXPECT_EQ(refusal(torch::tensor({7}, torch::kInt64), torch::kFloat32),
            ErrorCode::InvalidArgument);
  EXPECT_EQ(refusal(torch::tensor({-1}, torch::kInt64), torch::kFloat32),
            ErrorCode::InvalidArgument);
  EXPECT_EQ(refusal(torch::tensor({1}, torch::kInt32), torch::kFloat32),
            ErrorCode::InvalidArgument);
  EXPECT_EQ(refusal(torch::tensor({1}, torch::kInt64), torch::kInt64), ErrorCode::InvalidArgument);
}

TEST(FashionMnist, IsRealWhereItIsInstalled) {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  }
  const TrainTest sets = load_dataset("fashion-mnist", "/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(sets.train.images.sizes().vec(), (std::vector<std::int64_t>{60000, 1, 28, 28}));
  EXPECT_EQ(sets.test.images.sizes().vec(), (std::vector<std::int64_t>{10000, 1, 28, 28}));
  EXPECT_TRUE(
      torch::equal(torch::bincount(sets.train.labels), torch::full({10}, 6000, torch::kInt64)));
  EXPECT_NEAR(sets.train.mean.at(0), 0.2860, 1e-4);
  EXPECT_NEAR(sets.train.stddev.at(0), 0.3530, 1e-4);
}

}  // namespace
}  // namespace bimetal::data
