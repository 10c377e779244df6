#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>

#include "bimetal/base/error.h"
#include "bimetal/monitor/scalar_log.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace bimetal::monitor {
namespace {

using namespace std::string_literals;

std::string ascending() {
  std::string bytes;
  for (char c = 0; c < 32; ++c) bytes += c;
  return bytes;
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogues.
TEST(EventFile, ChecksumsAreThoseOfTheStandard) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(ascending()), 0x46dd794eu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
  EXPECT_EQ(masked_crc32c("123456789"), ((0xe3069283u >> 15) | (0xe3069283u << 17)) + 0xa282ead8u);
}

TEST(EventFile, RecordsAreFramed) {
  const auto record = frame_record("123456789");
  ASSERT_EQ(record.size(), 8u + 4 + 9 + 4);
  EXPECT_EQ(record.substr(0, 8), "\x09\0\0\0\0\0\0\0"s);
  EXPECT_EQ(record.substr(12, 9), "123456789");
  const auto masked = masked_crc32c("123456789");
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(static_cast<unsigned char>(record[21 + i]), masked >> (8 * i) & 0xff);
  }
}

TEST(EventFile, ScalarsAreAProtocolBuffer) {
  const std::vector<Scalar> scalars = {{"loss", 0.5f}};
  EXPECT_EQ(
      encode_scalars(1.0, 300, scalars),
      "\x09\0\0\0\0\0\0\xf0\x3f"                     // wall_time
      "\x10\xac\x02"                                 // step: a varint of two bytes
      "\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f"s  // summary { value { tag, simple_value } }
  );
}

TEST(EventFile, WhatCannotBeMadeIsASystemError) {
  const ::bimetal::test::TemporaryFolder folder;
  ::bimetal::test::put_contents(folder / "file", "");
  expect_error(ErrorCode::System, {(folder / "file").string()},
               [&] { EventFile file(folder / "file", "pc"); });
}

TEST(EventFile, AFullDiskIsASystemError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const ::bimetal::test::TemporaryFolder folder;
  // Whatever its name in the next seconds, the file is on a full disk.
  for (int second = 0; second < 60; ++second) {
    const auto name = fmt::format("events.out.tfevents.{:010}.pc.{}.bimetal",
                                  std::time(nullptr) + second, ::getpid());
    std::filesystem::create_symlink("/dev/full", folder / name);
  }
  expect_error(ErrorCode::System, {"No space left"}, [&] { EventFile file(folder.path(), "pc"); });
}

}  // namespace
}  // namespace bimetal::monitor
