#include "bimetal/data/text/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "unit/data/text/token_files.h"

namespace bimetal::data {
namespace {

using ::testing::ElementsAre;
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
