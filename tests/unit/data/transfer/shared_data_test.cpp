#include "bimetal/data/transfer/shared_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bimetal/base/error.h"
#include "bimetal/data/text/token_set.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/progress/together.h"
#include "support/environment.h"
#include "support/errors.h"
#include "unit/data/text/token_files.h"
#include "unit/train/training_job.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using train::test::Recorder;

class SharedData : public ::testing::Test {
 protected:
  struct Rank {
    std::string path;
    Fetch fetch = {};
    bool interrupt = false;
    DatasetFiles files = {};
    std::string error = {};
    Recorder told = {};
  };

  void share(std::vector<Rank>& ranks, job::DataConfig config = {}) {
    const auto body = [&](int number, comm::Group group) {
      auto& rank = ranks[static_cast<std::size_t>(number)];
      auto mine = config;
      mine.path = rank.path;
      SharedDataOptions options;
      options.host_name = "host" + std::to_string(number);
      options.fetch = rank.fetch;
      options.timeout = std::chrono::seconds(20);
      options.interrupt_requested = [&] { return rank.interrupt; };
      try {
        rank.files = share_dataset(group, mine, options, rank.told);
      } catch (const Error& error) {
        rank.error = error.what();
      }
    };
    bimetal::testing::run_ranks(static_cast<int>(ranks.size()), body);
  }

  std::string no_folder() const { return (cache_ / "none").string(); }
  std::string images() const { return images_.path().string(); }

  train::test::SyntheticImages images_{40, 10};
  test::TemporaryFolder cache_;
  bimetal::test::Environment own_{"BIMETAL_CACHE", (cache_ / "cache").string()};
};

TEST_F(SharedData, TokensAreSentWithAndWithoutATestFile) {
  for (const bool tested : {true, false}) {
    const test::TemporaryFolder tokens;
    test::write_file(tokens / "train.tokens", test::token_bytes(test::counted(tested ? 9 : 8)));
    if (tested) test::write_file(tokens / "test.tokens", test::token_bytes(test::counted(4)));
    std::vector<Rank> ranks = {{tokens.path().string()}, {no_folder()}};
    job::DataConfig config;
    config.name = "tokens";
    share(ranks, config);
    for (const auto& rank : ranks) {
      ASSERT_EQ(rank.error, "");
      EXPECT_EQ(rank.files.files.size(), tested ? 2u : 1u);
    }
    EXPECT_NE(ranks[0].files.folder, ranks[1].files.folder);
    const auto sent = load_tokens(ranks[1].files, 4, "join");
    EXPECT_EQ(sent.train->file().size(), tested ? 9 : 8);
    EXPECT_EQ(sent.test != nullptr, tested);
  }
}

TEST_F(SharedData, ADifferentCopyIsNamedOnEveryRank) {
  const train::test::SyntheticImages others{40, 11};
  std::vector<Rank> ranks = {{images()}, {images()}, {others.path().string()}};
  share(ranks);
  for (const auto& rank : ranks) {
    EXPECT_THAT(rank.error, AllOf(HasSubstr("rank 2 on host2 has another copy"),
                                  HasSubstr("t10k-images"), HasSubstr("rank 0 on host0")));
  }
}

TEST_F(SharedData, WithoutServingARankWithoutACopyIsNamed) {
  std::vector<Rank> ranks = {{images()}, {no_folder()}};
  job::DataConfig config;
  config.send = false;
  share(ranks, config);
  for (const auto& rank : ranks) {
    EXPECT_THAT(rank.error, AllOf(HasSubstr("rank 1 on host1 has no copy"),
                                  HasSubstr("[data] send"), HasSubstr(no_folder())));
  }
}

TEST_F(SharedData, AnInterruptEndsItOnEveryRank) {
  std::vector<Rank> ranks = {{images()}, {images()}};
  ranks[1].interrupt = true;
  share(ranks);
  for (const auto& rank : ranks) EXPECT_EQ(rank.error, progress::Interrupted().what());
}

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

}  // namespace
}  // namespace bimetal::data
