#include "bimetal/data/text/token_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <numeric>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "unit/data/text/token_files.h"

namespace bimetal::data {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> numbers(const torch::Tensor& tensor) {
  const auto flat = tensor.contiguous().flatten();
  const auto* begin = flat.const_data_ptr<std::int64_t>();
  return {begin, begin + flat.numel()};
}

class TokenSetTest : public ::testing::Test {
 protected:
  std::shared_ptr<const TokenFile> file(const test::TokenFileParts& parts) {
    test::write_file(folder_ / "train.tokens", test::token_bytes(parts));
    return std::make_shared<const TokenFile>(folder_ / "train.tokens");
  }

  DatasetFiles both(const test::TokenFileParts& train, const test::TokenFileParts& test) {
    test::write_file(folder_ / "train.tokens", test::token_bytes(train));
    test::write_file(folder_ / "test.tokens", test::token_bytes(test));
    return find_dataset("tokens", folder_.path());
  }

  test::TemporaryFolder folder_;
};

task::Values all_of(const TokenSet& set) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(set.size()));
  std::iota(samples.begin(), samples.end(), 0);
  return set.batch(samples);
}

TEST_F(TokenSetTest, ForetellEachTokenFromTheOneBefore) {
  const TokenSet set(file(test::counted(9)), 4, Documents::Join);
  ASSERT_EQ(set.size(), 2);
  EXPECT_EQ(set.vocabulary(), 256);
  const auto batch = set.batch(std::vector<std::int64_t>{1, 0});
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0].sizes().vec(), (std::vector<std::int64_t>{2, 4}));
  EXPECT_THAT(numbers(batch[0]), ElementsAre(4, 5, 6, 7, 0, 1, 2, 3));
  EXPECT_THAT(numbers(batch[1]), ElementsAre(5, 6, 7, 8, 1, 2, 3, 4));
}

TEST_F(TokenSetTest, PadAShorterLastBlockWithoutWeight) {
  const TokenSet set(file(test::counted(7)), 4, Documents::Join);
  ASSERT_EQ(set.size(), 2);
  EXPECT_EQ(set.weight(0), 4);
  EXPECT_EQ(set.weight(1), 2);
  const auto batch = set.batch(std::vector<std::int64_t>{1});
  EXPECT_THAT(numbers(batch[0]), ElementsAre(4, 5, 0, 0));
  EXPECT_THAT(numbers(batch[1]), ElementsAre(5, 6, kNoTarget, kNoTarget));
}

/// Every token but the first of each text, once; and the weights are the targets.
TEST_F(TokenSetTest, VisitEveryTokenOnceWhateverTheBlock) {
  auto parts = test::counted(40);
  parts.ends = {1, 1, 13, 14, 30, 40};
  const auto tokens = file(parts);
  for (const auto documents : {Documents::Join, Documents::Separate}) {
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 1; i < 40; ++i) {
      const bool first = i == 1 || i == 13 || i == 14 || i == 30;
      if (documents == Documents::Join || !first) expected.push_back(i);
    }
    for (const std::int64_t block : {1, 3, 4, 5, 39, 100}) {
      const TokenSet set(tokens, block, documents);
      const auto targets = all_of(set)[1];
      std::vector<std::int64_t> found;
      for (const auto target : numbers(targets)) {
        if (target != kNoTarget) found.push_back(target);
      }
      EXPECT_EQ(found, expected) << "block " << block;
      const auto counts = targets.ne(kNoTarget).sum(1);
      for (std::int64_t i = 0; i < set.size(); ++i) {
        EXPECT_EQ(set.weight(i), counts[i].item<std::int64_t>());
      }
    }
  }
}

TEST_F(TokenSetTest, EndBlocksWithTheirDocumentsWhereTheseAreSeparate) {
  auto parts = test::counted(9);
  parts.ends = {3, 9};
  const TokenSet set(file(parts), 4, Documents::Separate);
  ASSERT_EQ(set.size(), 3);
  const auto batch = all_of(set);
  EXPECT_THAT(numbers(batch[0]), ElementsAre(0, 1, 0, 0, 3, 4, 5, 6, 7, 0, 0, 0));
  EXPECT_THAT(numbers(batch[1][1]), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(numbers(batch[1][2]), ElementsAre(8, kNoTarget, kNoTarget, kNoTarget));
}

TEST_F(TokenSetTest, RefuseSamplesThatAreNotTheirs) {
  const TokenSet set(file(test::counted(9)), 4, Documents::Join);
  EXPECT_THROW(set.batch(std::vector<std::int64_t>{2}), Error);
  EXPECT_THROW(set.batch(std::vector<std::int64_t>{-1}), Error);
}

TEST_F(TokenSetTest, NeedSomethingToForetell) {
  EXPECT_THROW(TokenSet(file(test::counted(1)), 4, Documents::Join), Error);
  EXPECT_THROW(TokenSet(file(test::counted(9)), 0, Documents::Join), Error);
  auto parts = test::counted(3);
  parts.ends = {1, 2, 3};
  EXPECT_NO_THROW(TokenSet(file(parts), 4, Documents::Join));
  EXPECT_THROW(TokenSet(file(parts), 4, Documents::Separate), Error);
}

TEST_F(TokenSetTest, AreLoadedFromAFolder) {
  const auto sets = load_tokens(both(test::counted(9), test::counted(4)), 4, "join");
  EXPECT_EQ(sets.train->size(), 2);
  ASSERT_TRUE(sets.test);
  EXPECT_EQ(sets.test->size(), 1);
  EXPECT_FALSE(load_tokens(both(test::counted(9), {}), 4, "separate").test);
  std::filesystem::remove(folder_ / "test.tokens");
  EXPECT_FALSE(load_tokens(find_dataset("tokens", folder_.path()), 4, "join").test);
}

TEST_F(TokenSetTest, CannotBeFoundWithoutTheTrainingFile) {
  test::write_file(folder_ / "test.tokens", test::token_bytes(test::counted(4)));
  expect_error(ErrorCode::InvalidArgument, {"has no train.tokens", "bimetal data tokenize"},
               [&] { find_dataset("tokens", folder_.path()); });
}

TEST_F(TokenSetTest, AreNotLoadedWhereTheFilesDoNotFit) {
  auto other = test::counted(4);
  other.vocabulary = 255;
  const auto files = both(test::counted(9), other);
  expect_error(ErrorCode::CorruptData, {"a vocabulary of 256", "one of 255"},
               [&] { load_tokens(files, 4, "join"); });
  EXPECT_THROW(load_tokens(files, 4, "apart"), Error);
}

TEST_F(TokenSetTest, ADamagedFileIsFoundWhenItIsLoaded) {
  const auto files = both(test::counted(9), test::counted(4));
  auto bytes = test::read_file(folder_ / "train.tokens");
  bytes[75] ^= 1;
  test::write_file(folder_ / "train.tokens", bytes);
  EXPECT_THROW(load_tokens(files, 4, "join"), Error);
}

using ::testing::HasSubstr;

class TokenFiles : public ::testing::Test {
 protected:
  /// The message of the error that opening and checking the file ends in; it must name the file.
  std::string failure(const test::Bytes& bytes) {
    test::write_file(file_, bytes);
    return expect_error(ErrorCode::CorruptData, {file_.string()}, [&] { TokenFile(file_).check(); })
        .what();
  }

  test::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "train.tokens";
};

TEST_F(TokenFiles, AreReadInBothWidthsMappedAndCompressed) {
  for (const std::uint32_t width : {2u, 4u}) {
    test::TokenFileParts parts{{3, 1, 65535, 0, 7}, {2, 2, 5}, width, 65536};
    test::write_file(file_, test::token_bytes(parts));
    test::write_gzip(folder_ / "train.tokens.gz", test::token_bytes(parts));
    for (const char* name : {"train.tokens", "train.tokens.gz"}) {
      const TokenFile file(folder_ / name);
      file.check();
      EXPECT_EQ(file.size(), 5);
      EXPECT_EQ(file.vocabulary(), 65536);
      ASSERT_EQ(file.documents(), 3);
      EXPECT_EQ(file.document_end(1), 2);
      EXPECT_EQ(file.document_end(2), 5);
      std::vector<std::int64_t> tokens(4);
      file.copy(1, tokens);
      EXPECT_THAT(tokens, ElementsAre(1, 65535, 0, 7)) << name << ", " << width << " bytes";
    }
  }
}

TEST_F(TokenFiles, GiveNothingBeyondTheirEnds) {
  test::write_file(file_, test::token_bytes(test::counted(5)));
  const TokenFile file(file_);
  std::vector<std::int64_t> tokens(3);
  EXPECT_NO_THROW(file.copy(2, tokens));
  EXPECT_THROW(file.copy(3, tokens), Error);
  EXPECT_THROW(file.copy(-1, tokens), Error);
}

TEST_F(TokenFiles, MayBeEmpty) {
  test::write_file(file_, test::token_bytes({}));
  const TokenFile file(file_);
  file.check();
  EXPECT_EQ(file.size(), 0);
}

TEST_F(TokenFiles, ThatAreForeignAreRefused) {
  EXPECT_THAT(failure({}), HasSubstr("it has 0 bytes"));
  auto parts = test::counted(5);
  parts.magic = "BMTOKENZ";
  EXPECT_THAT(failure(test::token_bytes(parts)), HasSubstr("does not begin with BMTOKENS"));
  parts = test::counted(5);
  parts.version = 2;
  EXPECT_THAT(failure(test::token_bytes(parts)), HasSubstr("format is version 2"));
  parts = test::counted(5);
  parts.vocabulary = 65537;
  EXPECT_THAT(failure(test::token_bytes(parts)), HasSubstr("a vocabulary of 65537 does not fit"));
}

TEST_F(TokenFiles, WithFlippedBitsAreRefusedWhereverTheyAre) {
  const auto sound = test::token_bytes(test::counted(9));
  for (std::size_t i = 0; i < sound.size(); ++i) {
    auto bytes = sound;
    bytes[i] ^= 0x40;
    failure(bytes);
  }
}

TEST_F(TokenFiles, ThatEndTooSoonOrTooLateAreRefused) {
  auto bytes = test::token_bytes(test::counted(9));
  bytes.push_back(0);
  EXPECT_THAT(failure(bytes), HasSubstr("need 104 bytes, and it has 105"));
  bytes.resize(100);
  EXPECT_THAT(failure(bytes), HasSubstr("need 104 bytes, and it has 100"));
  for (const int high : {30, 31}) {  // a count that overflows
    bytes[static_cast<std::size_t>(high)] = 0xff;
    EXPECT_THAT(failure(bytes), HasSubstr("need"));
  }
}

TEST_F(TokenFiles, TokensOutsideTheVocabularyAreFound) {
  auto parts = test::counted(9);
  parts.vocabulary = 8;
  EXPECT_THAT(failure(test::token_bytes(parts)),
              HasSubstr("token 8 is 8, outside its vocabulary of 8"));
}

TEST_F(TokenFiles, DocumentsMustEndInOrderAndWithTheLastToken) {
  auto parts = test::counted(9);
  parts.ends = {4, 3, 9};
  EXPECT_THAT(failure(test::token_bytes(parts)), HasSubstr("document 1 ends at token 3"));
  parts.ends = {4, 8};
  EXPECT_THAT(failure(test::token_bytes(parts)), HasSubstr("end at token 8 of 9"));
}

TEST_F(TokenFiles, ThatAreNotThereAreNamed) {
  expect_error(ErrorCode::System, {file_.string()}, [&] { TokenFile file(file_); });
}

}  // namespace
}  // namespace bimetal::data
