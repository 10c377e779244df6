#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <string>

#include "bimetal/base/error.h"
#include "bimetal/data/images/image_formats.h"
#include "support/errors.h"
#include "unit/data/images/image_files.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Call>
std::string failure(ErrorCode code, Call call) {
  return expect_error(code, {}, call).what();
}

void cut_short(const fs::path& file) {
  fs::resize_file(file, fs::file_size(file) / 2);
}

TEST(ImageFile, PngIsReadAsItIs) {
  const test::TemporaryFolder folder;
  const auto image = torch::randint(256, {3, 5, 7}, torch::kUInt8);
  test::write_png(folder / "a.png", image);
  EXPECT_TRUE(read_image(folder / "a.png").equal(image));
  const auto grey = torch::randint(256, {1, 4, 3}, torch::kUInt8);
  test::write_png(folder / "grey.png", grey);
  EXPECT_TRUE(read_image(folder / "grey.png").equal(grey.expand({3, 4, 3})));
  const auto clear = torch::cat({image, torch::zeros({1, 5, 7}, torch::kUInt8)});
  test::write_png(folder / "clear.png", clear);
  EXPECT_EQ(read_image(folder / "clear.png").sum().item<std::int64_t>(), 0);
}

TEST(ImageFile, JpegIsReadInColoursWhateverItsName) {
  const test::TemporaryFolder folder;
  const auto image = test::plain_image(9, 17, 200, 100, 50);
  test::write_jpeg(folder / "a.png", image);
  const auto read = read_image(folder / "a.png");
  ASSERT_EQ(read.sizes(), image.sizes());
  EXPECT_LE((read.to(torch::kInt) - image.to(torch::kInt)).abs().max().item<int>(), 3);
  test::write_jpeg(folder / "grey.jpg", torch::full({1, 8, 8}, 77, torch::kUInt8));
  EXPECT_EQ(read_image(folder / "grey.jpg").sizes().vec(), (std::vector<std::int64_t>{3, 8, 8}));
}

TEST(ImageFile, BrokenFilesAreNamedWithWhatIsWrong) {
  const test::TemporaryFolder folder;
  const auto wrong = [&](const std::string& name) {
    return failure(ErrorCode::CorruptData, [&] { read_image(folder / name); });
  };
  torch::manual_seed(1);
  const auto noise = torch::randint(256, {3, 40, 40}, torch::kUInt8);
  test::write_jpeg(folder / "cut.jpg", noise);
  test::write_png(folder / "cut.png", noise);
  cut_short(folder / "cut.jpg");
  cut_short(folder / "cut.png");
  test::write_file(folder / "text.jpg", {'h', 'e', 'l', 'l', 'o'});
  test::write_file(folder / "empty.jpg", {});
  EXPECT_THAT(wrong("cut.jpg"), AllOf(HasSubstr("cut.jpg' is no sound image"), HasSubstr("end")));
  EXPECT_THAT(wrong("cut.png"), HasSubstr("cut.png' is no sound image"));
  EXPECT_THAT(wrong("text.jpg"), HasSubstr("neither JPEG nor PNG"));
  EXPECT_THAT(wrong("empty.jpg"), HasSubstr("it is empty"));
}

TEST(ImageFile, TheMiddleOfTheShortSideIsKept) {
  auto wide = test::plain_image(10, 30, 9, 9, 9);
  wide.narrow(2, 10, 10).fill_(100);
  EXPECT_TRUE(middle_square(wide, 10).eq(100).all().item<bool>());
  EXPECT_TRUE(middle_square(wide.transpose(1, 2).contiguous(), 10).eq(100).all().item<bool>());
  const auto smaller = middle_square(wide, 5);
  EXPECT_EQ(smaller.sizes().vec(), (std::vector<std::int64_t>{3, 5, 5}));
  EXPECT_TRUE(smaller.narrow(2, 1, 3).eq(100).all().item<bool>());
  EXPECT_EQ(middle_square(wide, 33).sizes().vec(), (std::vector<std::int64_t>{3, 33, 33}));
}

class ImageFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto* part : {"train", "test"}) {
      for (const auto* name : {"dog", "cat"}) fs::create_directories(folder_.path() / part / name);
    }
    test::write_png(folder_ / "train/dog/2.png", test::plain_image(8, 12, 20, 0, 0));
    test::write_jpeg(folder_ / "train/dog/10.JPG", test::plain_image(30, 9, 10, 10, 10));
    test::write_png(folder_ / "train/cat/1.png", test::plain_image(6, 6, 30, 0, 0));
    test::write_file(folder_ / "train/cat/notes.txt", {'x'});
    test::write_png(folder_ / "test/dog/1.png", test::plain_image(6, 6, 40, 0, 0));
  }

  TrainTest load(bool skip_broken = false) {
    return load_dataset(find_dataset("images", folder_.path()),
                        {.image_size = 6, .skip_broken = skip_broken});
  }

  test::TemporaryFolder folder_;
};

TEST_F(ImageFolders, AreReadInTheOrderOfTheirNames) {
  const auto sets = load();
  EXPECT_EQ(sets.train.classes, 2);
  EXPECT_EQ(sets.train.images.sizes().vec(), (std::vector<std::int64_t>{3, 3, 6, 6}));
  EXPECT_TRUE(sets.train.labels.equal(torch::tensor({0, 1, 1}, torch::kInt64)));
  EXPECT_TRUE(sets.test.labels.equal(torch::tensor({1}, torch::kInt64)));
  EXPECT_EQ(sets.train.images[0][0][3][3].item<int>(), 30);
  EXPECT_NEAR(sets.train.images[1][0][3][3].item<int>(), 10, 2);
  EXPECT_EQ(sets.train.images[2][0][3][3].item<int>(), 20);
  EXPECT_EQ(sets.test.images[0][0][0][0].item<int>(), 40);
  EXPECT_TRUE(sets.left_out.empty());
}

TEST_F(ImageFolders, BrokenFilesEndTheLoadingOrAreLeftOut) {
  test::write_file(folder_ / "train/dog/1.png", {'x'});
  test::write_file(folder_ / "train/dog/3.png", {});
  EXPECT_THAT(
      failure(ErrorCode::CorruptData, [&] { load(); }),
      AllOf(HasSubstr("dog/1.png"), HasSubstr("2 of the 5 images"), HasSubstr("data.skip_broken")));
  const auto sets = load(/*skip_broken=*/true);
  EXPECT_EQ(sets.train.size(), 3);
  EXPECT_EQ(sets.train.images[2][0][3][3].item<int>(), 20);
  EXPECT_EQ(sets.left_out.size(), 2);
  test::write_file(folder_ / "test/dog/1.png", {'x'});
  EXPECT_THAT(failure(ErrorCode::CorruptData, [&] { load(true); }), HasSubstr("test/dog/1.png"));
}

TEST_F(ImageFolders, ErrorsSayWhatIsExpected) {
  fs::create_directories(folder_ / "test/dogs");
  EXPECT_THAT(failure(ErrorCode::InvalidArgument, [&] { load(); }),
              AllOf(HasSubstr("test/dogs"), HasSubstr("'dog'")));
  fs::remove_all(folder_ / "test/dogs");
  fs::remove(folder_ / "test/dog/1.png");
  EXPECT_THAT(failure(ErrorCode::InvalidArgument, [&] { load(); }), HasSubstr("no files *.jpg"));
  fs::remove_all(folder_ / "test");
  EXPECT_THAT(failure(ErrorCode::InvalidArgument, [&] { load(); }), HasSubstr("no folder test"));
}

}  // namespace
}  // namespace bimetal::data
