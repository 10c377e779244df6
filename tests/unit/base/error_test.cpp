#include "bimetal/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <ios>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>

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

TEST(Error, ACodeIsReadInItsOwnCategory) {
  const std::error_code missing(ENOENT, std::system_category());
  EXPECT_STREQ(system_error("cannot open 'x'", missing).what(),
               "cannot open 'x': No such file or directory");
  EXPECT_THAT(
      system_error("cannot make it", std::make_error_code(std::errc::too_many_files_open)).what(),
      HasSubstr("ulimit -n"));
  // A number that would be EMFILE as errno, and is none.
  const std::error_code foreign(EMFILE, std::iostream_category());
  EXPECT_EQ(std::string(system_error("cannot read it", foreign).what()),
            "cannot read it: " + foreign.message());
}

TEST(Error, ALimitIsNamed) {
  EXPECT_THAT(system_error("cannot make a pipe", EMFILE).what(), HasSubstr("ulimit -n"));
  EXPECT_THAT(system_error("cannot start it", EAGAIN).what(), HasSubstr("ulimit -u"));
}

TEST(ToError, MakesOneOfWhateverWasThrown) {
  const auto made_of = [](auto thrown) { return to_error(std::make_exception_ptr(thrown)); };
  const Error own = made_of(Error(ErrorCode::PeerLost, "rank 3 is gone", 3));
  EXPECT_EQ(own.code(), ErrorCode::PeerLost);
  EXPECT_EQ(own.rank(), 3);
  EXPECT_STREQ(own.what(), "rank 3 is gone");
  EXPECT_EQ(made_of(std::bad_alloc()).code(), ErrorCode::OutOfMemory);
  EXPECT_EQ(made_of(std::system_error(ENOENT, std::system_category())).code(), ErrorCode::System);
  EXPECT_EQ(made_of(std::logic_error("odd")).code(), ErrorCode::Internal);
  EXPECT_STREQ(made_of(std::logic_error("odd")).what(), "odd");
  EXPECT_EQ(made_of(7).code(), ErrorCode::Internal);
}

}  // namespace
}  // namespace bimetal
