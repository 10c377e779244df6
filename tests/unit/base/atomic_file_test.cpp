#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "support/errors.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal {
namespace {

namespace fs = std::filesystem;
using test::contents_of;
using test::names_in;
using test::put_contents;

std::string refusal_of(const fs::path& target) {
  return expect_error(ErrorCode::System, {}, [&] { write_file_atomically(target, "new"); }).what();
}

TEST(AtomicFile, TheOldContentsStayUntilCommit) {
  const test::TemporaryFolder folder;
  put_contents(folder / "file", "old");
  {
    AtomicFile file(folder / "file");
    file.write("new");
    EXPECT_EQ(contents_of(folder / "file"), "old");
  }
  EXPECT_EQ(contents_of(folder / "file"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"file"});
}

TEST(AtomicFile, WritesIntoTheCurrentFolder) {
  const test::TemporaryFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  write_file_atomically("file", "text");
  fs::current_path(before);
  EXPECT_EQ(contents_of(folder / "file"), "text");
}

TEST(AtomicFile, FollowsALink) {
  const test::TemporaryFolder folder;
  fs::create_directory(folder / "other");
  put_contents(folder / "other/file", "old");
  fs::create_symlink("other/file", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(contents_of(folder / "other/file"), "new");
}

TEST(AtomicFile, NamesPathAndCause) {
  const test::TemporaryFolder folder;
  const auto missing = folder / "missing/file";
  EXPECT_EQ(refusal_of(missing),
            "cannot write " + missing.string() + ": No such file or directory");
  EXPECT_EQ(refusal_of(folder.path()),
            "cannot write " + folder.path().string() + ": it is no regular file");
}

TEST(AtomicFile, DoesNotReplaceWhatIsNoFile) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(folder / "pipe"), ::testing::HasSubstr("no regular file"));
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(AtomicFile, RunningOutOfRoomLeavesTheOldContentsAlone) {
  const test::TemporaryFolder folder;
  put_contents(folder / "file", "old");
  test::ForkedChild child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(folder / "file", std::string(5000, 'x'));
    } catch (const Error& error) {
      const std::string path = (folder / "file").string();
      return std::string(error.what()) == "cannot write " + path + ": File too large" ? 0 : 1;
    }
    return 2;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(contents_of(folder / "file"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"file"});
}

TEST(AtomicFile, TheNextWriterRemovesWhatAKilledOneLeft) {
  const test::TemporaryFolder folder;
  test::ForkedChild child([&]() -> int {
    AtomicFile file(folder / "file");
    file.write("half");
    put_contents(folder / "ready", "");
    for (;;) pause();
  });
  test::wait_for_name(folder.path(), "ready");
  child.kill_and_wait();
  ASSERT_EQ(names_in(folder.path()).size(), 2u);
  write_file_atomically(folder / "file", "whole");
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"file", "ready"}));
}

}  // namespace
}  // namespace bimetal
