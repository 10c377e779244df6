#include "bimetal/optim/offload/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <numeric>
#include <vector>

#include "bimetal/base/error.h"
#include "support/temporary_folder.h"

namespace bimetal::optim {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::filesystem::path& folder, std::uint64_t bytes, ErrorCode code) {
  try {
    const StateFile file(folder, bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "";
}

TEST(StateFile, HoldsWhatWasWrittenAndLeavesNothing) {
  const test::TemporaryFolder folder;
  std::vector<std::byte> bytes(100'000), read(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  {
    const StateFile file(folder.path(), 1u << 20);
    file.read(read, 5000);
    EXPECT_EQ(read, std::vector<std::byte>(bytes.size()));
    file.write(bytes, 5000);
    file.read(read, 5000);
    EXPECT_EQ(read, bytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), file.mapped() + 5000));
    file.let_go_of_mapped(0, file.bytes());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), file.mapped() + 5000));
    // Gone for everybody else already, so that no kind of end leaves it.
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
  const StateFile none(folder.path(), 0);
  EXPECT_EQ(none.bytes(), 0u);
}

TEST(StateFile, ADiskThatIsTooSmallIsFoundOutAtOnce) {
  const test::TemporaryFolder folder;
  const auto text = refusal(folder.path(), std::uint64_t{1} << 46, ErrorCode::System);
  EXPECT_THAT(text, HasSubstr(folder.path().string()));
  EXPECT_THAT(text, HasSubstr("zero.offload_path"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(StateFile, ALimitOfFilesEndsNoProcess) {
  const test::TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 1u << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto text = refusal(folder.path(), 2u << 20, ErrorCode::System);
  EXPECT_EQ(refusal(folder.path(), 1u << 20, ErrorCode::System), "");
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(text, HasSubstr("ulimit -f"));
}

TEST(StateFile, APathMustBeAFolder) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "text";
  EXPECT_THAT(refusal(folder.path() / "file", 1, ErrorCode::InvalidArgument),
              HasSubstr("is no folder"));
  EXPECT_THAT(refusal(folder.path() / "nowhere", 1, ErrorCode::InvalidArgument),
              HasSubstr("zero.offload_path"));
}

}  // namespace
}  // namespace bimetal::optim
