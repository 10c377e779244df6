#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/optim/cpu_adam.h"
#include "bimetal/optim/offload/state_file.h"
#include "support/temporary_folder.h"

namespace bimetal::optim {
namespace {

using std::chrono::milliseconds;

TEST(TransferMeter, TimeOfTransfersAtOnceCountsOnce) {
  TransferMeter meter;
  const auto sleep = [] { std::this_thread::sleep_for(milliseconds(50)); };
  const Stopwatch watch;
  std::vector<std::thread> transfers;
  for (int i = 0; i < 4; ++i) transfers.emplace_back([&] { meter.during(10, sleep); });
  for (auto& transfer : transfers) transfer.join();
  EXPECT_EQ(meter.total().bytes, 40U);
  EXPECT_GE(meter.total().seconds, 0.05);
  EXPECT_LE(meter.total().seconds, watch.seconds());
}

TEST(TransferMeter, WhatFailsHasMovedNothing) {
  TransferMeter meter;
  EXPECT_THROW(meter.during(10, [] { throw std::runtime_error("torn"); }), std::runtime_error);
  meter.during(7, [] {});
  EXPECT_EQ(meter.total().bytes, 7U);
}

TEST(PlainCopy, GoesThereAndBackAndLeavesNothing) {
  const test::TemporaryFolder folder;
  const std::uint64_t most = (20u << 20) + 5;
  const auto copy = copy_plainly(folder.path(), most, std::chrono::minutes(1));
  EXPECT_EQ(copy.written.bytes, most);
  EXPECT_EQ(copy.read.bytes, most);
  EXPECT_GT(copy.written.seconds, 0);
  EXPECT_GT(copy.read.seconds, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PlainCopy, EndsEarlyOnASlowDisk) {
  const test::TemporaryFolder folder;
  const auto copy = copy_plainly(folder.path(), 64u << 20, milliseconds(0));
  EXPECT_EQ(copy.written.bytes, 0U);
  EXPECT_EQ(copy.read.bytes, 0U);
}

TEST(PlainCopy, WithoutRoomThereIsNone) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(copy_plainly(folder.path(), std::uint64_t{1} << 46, milliseconds(10)).read.bytes, 0U);
  EXPECT_THROW(copy_plainly(folder.path() / "nowhere", 1, milliseconds(10)), Error);
}

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
