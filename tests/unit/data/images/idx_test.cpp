#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>

#include "bimetal/base/error.h"
#include "bimetal/data/images/image_formats.h"
#include "support/errors.h"
#include "unit/data/idx_files.h"

namespace bimetal::data {
namespace {

using test::Bytes;
using test::counting;
using test::idx_bytes;
using ::testing::HasSubstr;

class Idx : public ::testing::Test {
 protected:
  /// The message of the error that reading `file` ends in; it must name the file.
  std::string failure(ErrorCode code) {
    return expect_error(code, {file_.string()}, [&] { read_idx(file_); }).what();
  }

  test::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "images";
};

TEST_F(Idx, ReadsPlainAndCompressedFilesAlike) {
  const Bytes elements = counting(3 * 4 * 5);
  const auto expected =
      torch::from_blob(const_cast<std::uint8_t*>(elements.data()), {3, 4, 5}, torch::kUInt8);
  test::write_file(file_, idx_bytes({3, 4, 5}, elements));
  EXPECT_TRUE(torch::equal(read_idx(file_), expected));
  test::write_gzip(file_, idx_bytes({3, 4, 5}, elements));
  EXPECT_TRUE(torch::equal(read_idx(file_), expected));
}

TEST_F(Idx, ReadsFilesLargerThanItsPieces) {
  const Bytes elements = counting(9'000'001);
  test::write_gzip(file_, idx_bytes({9'000'001}, elements));
  const auto tensor = read_idx(file_);
  ASSERT_EQ(tensor.numel(), 9'000'001);
  EXPECT_EQ(Bytes(tensor.const_data_ptr<std::uint8_t>(),
                  tensor.const_data_ptr<std::uint8_t>() + tensor.numel()),
            elements);
}

TEST_F(Idx, ReadsAnEmptyList) {
  test::write_file(file_, idx_bytes({0, 28, 28}, {}));
  EXPECT_EQ(read_idx(file_).sizes().vec(), (std::vector<std::int64_t>{0, 28, 28}));
}

TEST_F(Idx, NamesAFileThatIsNotThere) {
  EXPECT_THAT(failure(ErrorCode::System), HasSubstr("No such file"));
}

TEST_F(Idx, RefusesAFolder) {
  std::filesystem::create_directory(file_);
  failure(ErrorCode::System);
}

TEST_F(Idx, FindsEveryTruncationOfAPlainFile) {
  const Bytes whole = idx_bytes({2, 3}, counting(6));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    test::write_file(file_, Bytes(whole.begin(), whole.begin() + static_cast<long>(size)));
    EXPECT_THAT(failure(ErrorCode::CorruptData),
                ::testing::AnyOf(HasSubstr("truncated"), HasSubstr("it ends within")))
        << size;
  }
}

TEST_F(Idx, FindsEveryTruncationOfACompressedFile) {
  test::write_gzip(file_, idx_bytes({40, 10}, counting(400)));
  const Bytes whole = test::read_file(file_);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    test::write_file(file_, Bytes(whole.begin(), whole.begin() + static_cast<long>(size)));
    failure(ErrorCode::CorruptData);
  }
}

TEST_F(Idx, FindsAFlippedBitInACompressedFile) {
  test::write_gzip(file_, idx_bytes({40, 10}, counting(400)));
  Bytes bytes = test::read_file(file_);
  bytes[bytes.size() - 6] ^= 0x10;  // in the checksum
  test::write_file(file_, bytes);
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("damaged"));
}

TEST_F(Idx, FindsDataBeyondItsDimensions) {
  test::write_file(file_, idx_bytes({2, 3}, counting(7)));
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("longer than the 6 bytes"));
  test::write_gzip(file_, idx_bytes({2, 3}, counting(7)));
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("longer than the 6 bytes"));
}

TEST_F(Idx, RefusesAnotherMagic) {
  test::write_file(file_, {'P', 'K', 3, 4, 0, 0, 0, 0});
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("it begins with 50 4b 03 04"));
  test::write_file(file_, {0, 0, 8, 0});
  failure(ErrorCode::CorruptData);
}

TEST_F(Idx, RefusesOtherElementTypes) {
  test::write_file(file_, {0, 0, 0x0d, 1, 0, 0, 0, 1, 0, 0, 0, 0});
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("type 0x0d"));
}

TEST_F(Idx, AllocatesNothingForDimensionsThatLie) {
  test::write_file(file_, idx_bytes({0xffffffff, 0xffffffff}, counting(10)));
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("overflow"));
  test::write_file(file_, idx_bytes({0x7fffffff, 0x7fffffff}, counting(10)));  // 4 EiB
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("it has 10"));
  test::write_gzip(file_, idx_bytes({0x7fffffff, 0x7fffffff}, counting(10)));
  EXPECT_THAT(failure(ErrorCode::CorruptData), HasSubstr("it has 10"));
}

}  // namespace
}  // namespace bimetal::data
