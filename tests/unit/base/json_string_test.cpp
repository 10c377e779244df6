#include "bimetal/base/json_string.h"

#include <gtest/gtest.h>

namespace bimetal {
namespace {

TEST(JsonString, QuotesAndEscapes) {
  EXPECT_EQ(json_string(""), R"("")");
  EXPECT_EQ(json_string("plain, with blanks"), R"("plain, with blanks")");
  EXPECT_EQ(json_string("a\"b\\c\n\t"), R"("a\"b\\c\u000a\u0009")");
  EXPECT_EQ(json_string(std::string_view("\0", 1)), R"("\u0000")");
}

TEST(JsonString, KeepsUtf8AndReplacesWhatIsNone) {
  EXPECT_EQ(json_string("größe €😀"), "\"größe €😀\"");
  EXPECT_EQ(json_string("a\xff"), R"("a\ufffd")");
  EXPECT_EQ(json_string("\xc3"), R"("\ufffd")");                      // ends too early
  EXPECT_EQ(json_string("\xc0\xaf"), R"("\ufffd\ufffd")");            // overlong
  EXPECT_EQ(json_string("\xed\xa0\x80"), R"("\ufffd\ufffd\ufffd")");  // a surrogate
  EXPECT_EQ(json_string("\xf5\x80\x80\x80"), R"("\ufffd\ufffd\ufffd\ufffd")");
}

}  // namespace
}  // namespace bimetal
