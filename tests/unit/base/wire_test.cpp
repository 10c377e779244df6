#include "bimetal/base/wire.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal {
namespace {

TEST(Wire, RoundTripsEveryType) {
  WireWriter writer;
  writer.u8(0xfe);
  writer.u16(0xbeef);
  writer.u32(0xdeadbeef);
  writer.u64(0x0123456789abcdefull);
  writer.i32(-7);
  writer.i64(std::numeric_limits<std::int64_t>::min());
  writer.f64(-0.1);
  writer.string("ränk");
  WireReader reader(writer.bytes());
  EXPECT_EQ(reader.u8(), 0xfe);
  EXPECT_EQ(reader.u16(), 0xbeef);
  EXPECT_EQ(reader.u32(), 0xdeadbeef);
  EXPECT_EQ(reader.u64(), 0x0123456789abcdefull);
  EXPECT_EQ(reader.i32(), -7);
  EXPECT_EQ(reader.i64(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(reader.f64(), -0.1);
  EXPECT_EQ(reader.string(), "ränk");
  EXPECT_NO_THROW(reader.expect_end());
}

TEST(Wire, IsLittleEndianWhateverTheHost) {
  WireWriter writer;
  writer.u32(0x04030201);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(std::to_integer<int>(writer.bytes()[i]), i + 1);
}

TEST(Wire, RefusesToReadPastTheEnd) {
  WireWriter writer;
  writer.u16(1);
  WireReader reader(writer.bytes());
  EXPECT_THROW(reader.u32(), Error);
}

TEST(Wire, DoesNotBelieveALengthThatIsNotThere) {
  WireWriter writer;
  writer.u32(0xffffffff);
  WireReader reader(writer.bytes());
  expect_error(ErrorCode::CorruptData, {}, [&] { reader.string(); });
}

TEST(Wire, NoticesBytesLeftOver) {
  WireWriter writer;
  writer.u16(1);
  WireReader reader(writer.bytes());
  reader.u8();
  EXPECT_THROW(reader.expect_end(), Error);
}

}  // namespace
}  // namespace bimetal
