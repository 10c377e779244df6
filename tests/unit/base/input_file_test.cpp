#include "bimetal/base/input_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal {
namespace {

TEST(InputFile, GivesAllOfAFileInPieces) {
  const test::TemporaryFolder folder;
  const std::string contents(100'000, 'x');
  test::put_contents(folder / "file", contents);
  InputFile file(folder / "file");
  std::string begin(7, '\0');
  EXPECT_EQ(file.read(std::as_writable_bytes(std::span(begin))), 7u);
  EXPECT_EQ(begin + file.read_all(), contents);
  EXPECT_EQ(file.read(std::as_writable_bytes(std::span(begin))), 0u);
}

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

}  // namespace
}  // namespace bimetal
