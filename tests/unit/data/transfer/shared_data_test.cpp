#include "bimetal/data/transfer/shared_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bimetal/base/error.h"
#include "bimetal/data/text/token_set.h"
#include "bimetal/progress/together.h"
#include "support/environment.h"
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

TEST_F(SharedData, WhoeverHasItKeepsIt) {
  std::vector<Rank> ranks = {{images()}, {images()}};
  share(ranks);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.files.folder, images_.path());
    EXPECT_EQ(rank.files.files.size(), 4u);
  }
  EXPECT_FALSE(fs::exists(cache_ / "cache")) << "nothing is left behind for small files";
}

TEST_F(SharedData, RanksOfOneCacheAreSentItOnce) {
  std::vector<Rank> ranks = {{no_folder()}, {images()}, {no_folder()}};
  share(ranks);
  for (const auto& rank : ranks) EXPECT_EQ(rank.error, "");
  EXPECT_EQ(ranks[0].files.folder, ranks[2].files.folder);
  EXPECT_THAT(ranks[0].files.folder.string(), HasSubstr((cache_ / "cache" / "data").string()));
  EXPECT_THAT(ranks[0].told.notices,
              ElementsAre(AllOf(HasSubstr("no data on rank 0 on host0"), HasSubstr("none of these"),
                                HasSubstr("rank 1 on host1 sends"), Not(HasSubstr("rank 2")))));
  auto again = ranks;
  for (auto& rank : again) rank.told.notices.clear();
  share(again);
  EXPECT_THAT(again[0].told.notices, IsEmpty()) << "it was kept";
  EXPECT_EQ(again[2].files.folder, ranks[2].files.folder);
}

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

TEST_F(SharedData, AUrlIsFetchedOnceForACache) {
  std::atomic<int> fetches = 0;
  const Fetch copying = [&](const FetchRequest& request, progress::Meter&) {
    ++fetches;
    EXPECT_EQ(request.url, "copy://folder");
    fs::copy(images_.path(), request.into);
    return Fetched::complete;
  };
  std::vector<Rank> ranks = {{"copy://folder", copying}, {"copy://folder", copying}};
  share(ranks);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.error, "");
    EXPECT_THAT(rank.files.folder.string(), HasSubstr((cache_ / "cache" / "urls").string()));
  }
  EXPECT_EQ(fetches, 1);
}

TEST_F(SharedData, ARankThatCannotReachTheUrlIsSentTheData) {
  const Fetch failing = [](const FetchRequest&, progress::Meter&) -> Fetched {
    throw Error(ErrorCode::System, "no route to host");
  };
  std::vector<Rank> ranks = {{images()}, {"copy://folder", failing}};
  share(ranks);
  for (const auto& rank : ranks) EXPECT_EQ(rank.error, "");
  EXPECT_THAT(ranks[0].told.notices, ElementsAre(HasSubstr("no route to host")));

  std::vector<Rank> alone = {{"copy://folder", failing}};
  share(alone);
  EXPECT_EQ(alone[0].error, "no route to host") << "nobody has it";
}

TEST_F(SharedData, AnInterruptEndsItOnEveryRank) {
  std::vector<Rank> ranks = {{images()}, {images()}};
  ranks[1].interrupt = true;
  share(ranks);
  for (const auto& rank : ranks) EXPECT_EQ(rank.error, progress::Interrupted().what());
}

}  // namespace
}  // namespace bimetal::data
