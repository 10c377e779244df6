#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/data/transfer/cache.h"
#include "support/environment.h"
#include "support/errors.h"
#include "unit/data/idx_files.h"

namespace bimetal::data {
namespace {

using ::bimetal::test::contents_of;
using ::bimetal::test::Environment;
using ::bimetal::test::put_contents;
using ::bimetal::test::TemporaryFolder;

/// More than is read at a time.
test::Bytes long_bytes() {
  test::Bytes bytes(3'000'001);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i >> 7);
  return bytes;
}

class ContentOfFile : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  progress::Meter meter_;
};

TEST_F(ContentOfFile, IsBlake2b) {
  put_contents(folder_ / "abc", "abc");
  const auto content = content_of(folder_ / "abc", meter_);
  EXPECT_EQ(content.size, 3u);
  EXPECT_EQ(hex(content.digest),
            "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  EXPECT_EQ(hex(content.digest, 6), "bddd81");
  EXPECT_EQ(content.digest, digest_of(std::string("abc")));
}

TEST_F(ContentOfFile, IsTheSameCompressed) {
  test::write_file(folder_ / "plain", long_bytes());
  test::write_gzip(folder_ / "compressed.gz", long_bytes());
  const auto plain = content_of(folder_ / "plain", meter_);
  EXPECT_EQ(meter_.done(), 3'000'001u);
  progress::Meter compressed;
  EXPECT_EQ(content_of(folder_ / "compressed.gz", compressed), plain);
  EXPECT_EQ(compressed.done(), std::filesystem::file_size(folder_ / "compressed.gz"));
}

TEST_F(ContentOfFile, DamagedCompressionIsFound) {
  test::write_gzip(folder_ / "a.gz", long_bytes());
  auto bytes = contents_of(folder_ / "a.gz");
  bytes[bytes.size() / 2] ^= 0x55;
  put_contents(folder_ / "damaged.gz", bytes);
  put_contents(folder_ / "short.gz", contents_of(folder_ / "a.gz").substr(0, 1000));
  for (const char* name : {"damaged.gz", "short.gz"}) {
    expect_error(ErrorCode::CorruptData, {name}, [&] { content_of(folder_ / name, meter_); });
  }
}

TEST_F(ContentOfFile, EndsWhenItIsStopped) {
  test::write_file(folder_ / "plain", long_bytes());
  meter_.stop();
  EXPECT_THROW(content_of(folder_ / "plain", meter_), Error);
}

class RememberedContent : public ContentOfFile {
 protected:
  void SetUp() override {
    put_contents(file_, "abc");
    age(std::chrono::hours(1));
    content_ = content_of(file_, meter_);
  }
  void age(std::chrono::seconds seconds) {
    std::filesystem::last_write_time(file_,
                                     std::filesystem::file_time_type::clock::now() - seconds);
  }

  const std::filesystem::path file_ = folder_ / "file";
  const Environment cache_{"BIMETAL_CACHE", (folder_ / "cache").string()};
  Content content_;
};

TEST_F(RememberedContent, IsOfThisSizeAndTimeAlone) {
  EXPECT_EQ(remembered_content(file_, file_stamp(file_)), std::nullopt);
  remember_content(file_, file_stamp(file_), content_, 0);
  EXPECT_EQ(remembered_content(file_, file_stamp(file_)), content_);
  age(std::chrono::hours(2));
  EXPECT_EQ(remembered_content(file_, file_stamp(file_)), std::nullopt);
  remember_content(file_, file_stamp(file_), content_, 0);
  EXPECT_EQ(remembered_content(file_, file_stamp(file_)), content_);
  auto longer = file_stamp(file_);
  ++longer.size;
  EXPECT_EQ(remembered_content(file_, longer), std::nullopt);
  EXPECT_EQ(bimetal::test::names_in(folder_ / "cache" / "checksums").size(), 1u)
      << "one note for each path";
}

TEST_F(RememberedContent, IsLeftOutWhereItIsNoUseOrNotSafe) {
  remember_content(file_, file_stamp(file_), content_);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache")) << "small files leave nothing";
  age(std::chrono::seconds(0));
  remember_content(file_, file_stamp(file_), content_, 0);
  EXPECT_EQ(remembered_content(file_, file_stamp(file_)), std::nullopt)
      << "it may change again within the clock's tick";
}

TEST_F(RememberedContent, DamagedNotesAreNone) {
  remember_content(file_, file_stamp(file_), content_, 0);
  const auto notes = folder_ / "cache" / "checksums";
  const auto note = notes / *bimetal::test::names_in(notes).begin();
  const auto sound = contents_of(note);
  for (const auto& text : {sound.substr(0, sound.size() / 2), std::string("x"), std::string()}) {
    put_contents(note, text);
    EXPECT_EQ(remembered_content(file_, file_stamp(file_)), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace bimetal::data
