#include "bimetal/base/wire.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire_fields.h"
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

enum class Colour { red, green };
struct Spot {
  Colour colour = Colour::red;
  std::vector<std::string> names = {};
  bool operator==(const Spot&) const = default;
};
struct Picture {
  bool framed = false;
  int width = 0;
  double scale = 0;
  std::vector<Spot> spots = {};
  bool operator==(const Picture&) const = default;
};

template <typename Wire>
void fields(Wire& wire, Picture& picture) {
  wire(picture.framed, picture.width, picture.scale);
  wire.each(picture.spots, [&](Spot& spot) { wire(spot.colour, spot.names); });
}

TEST(WireFields, AreReadAsTheyAreWritten) {
  Picture sent{true, -3, 0.1, {{Colour::green, {"a", ""}}, {}}};
  FieldWriter out;
  fields(out, sent);
  auto bytes = std::move(out).take();
  FieldReader in(bytes);
  Picture got;
  fields(in, got);
  in.expect_end();
  EXPECT_EQ(got, sent);
  bytes[13] = std::byte{0xff};  // how many spots there are
  FieldReader lied_to(bytes);
  expect_error(ErrorCode::CorruptData, {}, [&] { fields(lied_to, got); });
}

}  // namespace
}  // namespace bimetal
