#include "bimetal/data/transfer/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "support/environment.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace bimetal::data {
namespace {

using ::bimetal::test::Environment;
using ::bimetal::test::TemporaryFolder;
using ::testing::Each;

TEST(CacheFolder, IsWhereTheVariablesSay) {
  const Environment home("HOME", "/home/anna"), no_xdg("XDG_CACHE_HOME", ""),
      no_own("BIMETAL_CACHE", "");
  EXPECT_EQ(cache_root(), "/home/anna/.cache/bimetal");
  const Environment xdg("XDG_CACHE_HOME", "/caches");
  EXPECT_EQ(cache_root(), "/caches/bimetal");
  const Environment own("BIMETAL_CACHE", "/scratch/data");
  EXPECT_EQ(cache_root(), "/scratch/data");
}

TEST(CacheFolder, HasOneIdForAllWhoUseIt) {
  TemporaryFolder folder;
  const Environment own("BIMETAL_CACHE", (folder / "a").string());
  const Cache one, again;
  EXPECT_EQ(one.id(), again.id());
  EXPECT_EQ(one.id().size(), 32u);
  const Environment other("BIMETAL_CACHE", (folder / "b").string());
  EXPECT_NE(Cache().id(), one.id());
  EXPECT_EQ(one.data_folder(digest_of(std::string("x"))).parent_path(), folder / "a" / "data");
}

TEST(CacheFolder, HasOneIdForThoseWhoMakeItAtTheSameTime) {
  constexpr std::size_t kThreads = 4;
  TemporaryFolder folder;
  for (int round = 0; round < 50; ++round) {
    const Environment own("BIMETAL_CACHE", (folder / std::to_string(round)).string());
    std::array<std::string, kThreads> ids;
    {
      std::barrier start(kThreads);
      std::vector<std::jthread> makers;
      for (auto& id : ids) {
        makers.emplace_back([&] {
          start.arrive_and_wait();
          id = Cache().id();
        });
      }
    }
    EXPECT_THAT(ids, Each(ids[0])) << "in round " << round;
    EXPECT_NE(ids[0], "");
  }
}

TEST(CacheFolder, ThatCannotBeMadeSaysWhatToDo) {
  TemporaryFolder folder;
  bimetal::test::put_contents(folder / "file", "");
  const Environment own("BIMETAL_CACHE", (folder / "file").string());
  expect_error(ErrorCode::System, {(folder / "file").string(), "BIMETAL_CACHE"}, [&] { Cache(); });
}

}  // namespace
}  // namespace bimetal::data
