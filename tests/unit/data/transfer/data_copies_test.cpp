#include "bimetal/data/transfer/data_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"

namespace bimetal::data {
namespace {

using ::testing::ElementsAre;

Content content(const std::string& text) {
  return {text.size(), digest_of(text)};
}

FileFact file(const std::string& path, const std::string& identity,
              std::optional<Content> known = {}) {
  return {.path = path, .identity = identity, .stored_size = 10, .content = known};
}

TEST(DataCopies, SurviveTheWire) {
  Copy copy{.host = "pc1", .files = {file("/a", "7", content("x")), file("/b", "")}};
  copy.code = ErrorCode::System;
  const auto back = decode_copy(encode_copy(copy));
  EXPECT_EQ(back.host, "pc1");
  EXPECT_EQ(back.code, ErrorCode::System);
  EXPECT_TRUE(back.there());
  ASSERT_EQ(back.files.size(), 2u);
  EXPECT_EQ(back.files[0].content, content("x"));
  EXPECT_EQ(back.files[1].content, std::nullopt);
  EXPECT_EQ(back.files[1].path, "/b");
  auto bytes = encode_copy(copy);
  bytes.pop_back();
  EXPECT_THROW(decode_copy(bytes), Error);
}

TEST(DataCopies, AFileIsReadByTheFirstThatSeesIt) {
  const std::vector<Copy> copies = {
      {.host = "a", .files = {file("/x", "1"), file("/y", "2", content("y"))}},
      {.host = "a", .files = {file("/x", "1"), file("/z", "3")}},
      {.host = "b", .files = {file("/x", ""), file("/z", "3")}}};
  EXPECT_THAT(files_to_read(copies, 0), ElementsAre(0)) << "the other is known";
  EXPECT_THAT(files_to_read(copies, 1), ElementsAre(1));
  EXPECT_THAT(files_to_read(copies, 2), ElementsAre(0)) << "nobody can tell that it is the same";
}

TEST(DataCopies, WhatOneHasReadAllKnowWhoSeeIt) {
  std::vector<Copy> copies = {{.files = {file("/x", "1")}},
                              {.files = {file("/x", "1", content("x"))}},
                              {.files = {file("/x", "")}}};
  share_contents(copies);
  EXPECT_EQ(copies[0].files[0].content, content("x"));
  EXPECT_EQ(copies[2].files[0].content, std::nullopt);
}

TEST(DataCopies, TheFirstDifferenceIsNamed) {
  std::vector<Copy> copies = {
      {.host = "pc0", .missing = "not there"},
      {.host = "pc1", .files = {file("/1/x", "", content("x")), file("/1/y", "", content("y"))}},
      {.host = "pc2", .files = {file("/2/x", "", content("x")), file("/2/y", "", content("y"))}}};
  EXPECT_EQ(reference_rank(copies), 1);
  EXPECT_NO_THROW(require_equal_copies(copies, "mnist"));
  EXPECT_EQ(digest_of_copy(copies[1]), digest_of_copy(copies[2]));
  EXPECT_EQ(stored_bytes(copies[1]), 20u);

  copies[2].files[1].content = content("yes");
  EXPECT_NE(digest_of_copy(copies[1]), digest_of_copy(copies[2]));
  EXPECT_EQ(expect_error(
                ErrorCode::CallMismatch,
                {"rank 2 on pc2", "rank 1 on pc1", "1 bytes", "3 bytes", "/1/y", "/2/y", "'mnist'"},
                [&] { require_equal_copies(copies, "mnist"); })
                .rank(),
            2);
}

TEST(DataCopies, AFileThatOneLacksIsADifference) {
  std::vector<Copy> copies = {
      {.host = "pc0", .files = {file("/0/x", "", content("x")), file("/0/y", "", content("y"))}},
      {.host = "pc1", .files = {file("/1/x", "", content("x"))}}};
  for (const char* what : {"fewer", "more"}) {
    EXPECT_EQ(expect_error(ErrorCode::CallMismatch, {"has 1", "has 2", "pc1"},
                           [&] { require_equal_copies(copies, "tokens"); })
                  .rank(),
              1)
        << what;
    std::swap(copies[0].files, copies[1].files);
  }
}

TEST(DataCopies, NobodyHavingAnyIsTheFirstRanksReason) {
  const std::vector<Copy> copies = {{.code = ErrorCode::Unsupported, .missing = "no fsspec"},
                                    {.missing = "no folder"}};
  try {
    reference_rank(copies);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_STREQ(error.what(), "no fsspec");
  }
}

}  // namespace
}  // namespace bimetal::data
