#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "support/errors.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal {
namespace {

TEST(InputFile, TellsWhatIsMissing) {
  const test::TemporaryFolder folder;
  test::put_contents(folder / "file", "");
  EXPECT_TRUE(InputFile::find(folder / "file"));
  EXPECT_FALSE(InputFile::find(folder / "nothing"));
  EXPECT_FALSE(InputFile::find(folder / "file/within"));
  expect_error(ErrorCode::System, {(folder / "nothing").string()},
               [&] { InputFile(folder / "nothing"); });
}

TEST(InputFile, WhatCannotBeOpenedJustNowIsNotMissing) {
  const test::TemporaryFolder folder;
  test::ForkedChild child([&] {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    try {
      InputFile::find(folder / "nothing");
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.find("Too many open files") != std::string::npos ? 0 : 1;
    }
    return 2;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(InputFile, AFailedReadIsNoEnd) {
  const test::TemporaryFolder folder;
  InputFile file(folder.path());  // opens on Linux and macOS; reading it is what fails
  EXPECT_THROW(file.read_all(), Error);
}

class MappedFiles : public ::testing::Test {
 protected:
  void write(const std::string& contents) { std::ofstream(file_, std::ios::binary) << contents; }

  test::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "file";
};

TEST_F(MappedFiles, StayWhenTheNameIsGoneOrAnothers) {
  write("old");
  const MappedFile file(file_);
  std::filesystem::remove(file_);
  write("new contents");
  ASSERT_EQ(file.bytes().size(), 3u);
  EXPECT_EQ(file.bytes()[0], std::byte{'o'});
}

TEST_F(MappedFiles, ThatCannotBeReadAreNamed) {
  for (const auto& path : {file_, folder_.path()}) {
    expect_error(ErrorCode::System, {path.string()}, [&] { const MappedFile file(path); });
  }
}

}  // namespace
}  // namespace bimetal
