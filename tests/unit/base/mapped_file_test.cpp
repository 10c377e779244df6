#include "bimetal/base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "bimetal/base/error.h"
#include "support/temporary_folder.h"

namespace bimetal {
namespace {

using ::testing::HasSubstr;

class MappedFiles : public ::testing::Test {
 protected:
  void write(const std::string& contents) { std::ofstream(file_, std::ios::binary) << contents; }

  test::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "file";
};

TEST_F(MappedFiles, HaveTheFilesBytes) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}}) {
    std::string contents(size, 'x');
    if (size > 0) contents.back() = '\0';
    write(contents);
    const MappedFile file(file_);
    EXPECT_TRUE(std::ranges::equal(file.bytes(), std::as_bytes(std::span(contents)))) << size;
  }
}

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
    try {
      const MappedFile file(path);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::System);
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
}

}  // namespace
}  // namespace bimetal
