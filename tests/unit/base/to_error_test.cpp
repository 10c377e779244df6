#include "bimetal/base/to_error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

namespace bimetal {
namespace {

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
