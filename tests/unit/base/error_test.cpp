#include "bimetal/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

namespace bimetal {
namespace {

using ::testing::HasSubstr;

TEST(Error, KeepsCodeMessageAndRank) {
  const Error error(ErrorCode::PeerLost, "rank 3 is gone", 3);
  EXPECT_EQ(error.code(), ErrorCode::PeerLost);
  EXPECT_EQ(error.rank(), 3);
  EXPECT_STREQ(error.what(), "rank 3 is gone");
  EXPECT_EQ(Error(ErrorCode::Timeout, "late").rank(), std::nullopt);
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::Internal); ++code) {
    names.insert(to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::Internal) + 1);
}

TEST(Error, SystemErrorUsesTheSystemsWords) {
  const Error error = system_error("cannot open 'x'", ENOENT);
  EXPECT_EQ(error.code(), ErrorCode::System);
  EXPECT_STREQ(error.what(), "cannot open 'x': No such file or directory");
}

TEST(Error, ALimitIsNamed) {
  EXPECT_THAT(system_error("cannot make a pipe", EMFILE).what(), HasSubstr("ulimit -n"));
  EXPECT_THAT(system_error("cannot start it", EAGAIN).what(), HasSubstr("ulimit -u"));
}

}  // namespace
}  // namespace bimetal
