#include "bimetal/base/mapped_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace bimetal {
namespace {

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
    expect_error(ErrorCode::System, {path.string()}, [&] { const MappedFile file(path); });
  }
}

}  // namespace
}  // namespace bimetal
