#include "bimetal/data/transfer/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <csignal>
#include <memory>
#include <optional>
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

using std::chrono::milliseconds;
using std::chrono::seconds;

class CacheLocking : public ::testing::Test {
 protected:
  std::unique_ptr<CacheLock> lock(progress::Meter& meter, milliseconds patience = seconds(60)) {
    return std::make_unique<CacheLock>(cache_, "x", patience, meter);
  }

  bimetal::test::TemporaryFolder folder_;
  bimetal::test::Environment own_{"BIMETAL_CACHE", folder_.path().string()};
  Cache cache_;
  progress::Meter mine_, theirs_;
};

TEST_F(CacheLocking, WhoWaitsFollowsTheHolderAndFindsTheWorkDone) {
  auto first = lock(mine_);
  EXPECT_FALSE(first->done_meanwhile());
  mine_.expect(1000);
  mine_.advance(400);
  bool done_meanwhile = false;
  std::thread waiting([&] { done_meanwhile = lock(theirs_)->done_meanwhile(); });
  while (theirs_.done() < 400 || theirs_.expected() < 1000) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  mine_.advance(600);
  first->mark_done();
  first.reset();
  waiting.join();
  EXPECT_TRUE(done_meanwhile);
  EXPECT_FALSE(lock(theirs_)->done_meanwhile()) << "it was done before this one began to wait";
}

TEST_F(CacheLocking, WorkThatFailsIsLeftToTheNext) {
  auto first = lock(mine_);
  std::optional<bool> done_meanwhile;
  std::thread waiting([&] { done_meanwhile = lock(theirs_)->done_meanwhile(); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_FALSE(done_meanwhile.has_value());
  first.reset();
  waiting.join();
  EXPECT_EQ(done_meanwhile, false);
}

TEST_F(CacheLocking, PatienceEndsWithAHolderThatHangs) {
  const auto first = lock(mine_);
  expect_error(ErrorCode::Timeout, {cache_.lock_file("x").string()},
               [&] { lock(theirs_, milliseconds(300)); });
}

TEST_F(CacheLocking, AWaitingThatIsStoppedEnds) {
  const auto first = lock(mine_);
  theirs_.stop();
  expect_error(ErrorCode::Aborted, {}, [&] { lock(theirs_); });
}

TEST_F(CacheLocking, AKilledHolderHoldsNothing) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const auto child = ::fork();
  if (child == 0) {
    const auto held = lock(mine_);
    [[maybe_unused]] const auto told = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(lock(theirs_, milliseconds(200)), Error);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(lock(theirs_)->done_meanwhile());
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace bimetal::data
