#include "bimetal/net/shm/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "bimetal/base/error.h"
#include "support/forked_child.h"

namespace bimetal::net {
namespace {

constexpr std::size_t kBytes = 1 << 16;

std::ptrdiff_t names_in_dev_shm() {
  const std::filesystem::path folder = "/dev/shm";
  if (!std::filesystem::exists(folder)) return 0;
  return std::ranges::count_if(std::filesystem::directory_iterator(folder), [](const auto& entry) {
    return entry.path().filename().string().starts_with("bimetal");
  });
}

std::ptrdiff_t open_files() {
  const std::filesystem::path folder = "/dev/fd";
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

#ifdef __linux__
// Or the first access on a host without memory would end the process (SIGBUS).
TEST(SharedMemoryTest, IsSetAsideAtOnce) {
  const auto made = SharedMemory::create(kBytes);
  struct ::stat status {};
  ASSERT_EQ(::fstat(static_cast<int>(made.address().handle), &status), 0);
  EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, kBytes);
}
#endif

TEST(SharedMemoryTest, AnotherProcessSeesWhatIsWritten) {
  const auto made = SharedMemory::create(kBytes);
  test::ForkedChild child([&] {
    const auto opened = SharedMemory::open(made.address(), kBytes);
    opened.bytes()[kBytes - 1] = std::byte{7};
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(made.bytes()[kBytes - 1], std::byte{7});
}

#ifdef __linux__
// Another process's memory that this process has touched does not count as its own.
TEST(SharedMemoryTest, BorrowedIsWhatOthersHaveMadeAndThisProcessHasTouched) {
  const auto made = SharedMemory::create(kBytes);
  std::ranges::fill(made.bytes().subspan(SharedMemory::kReserved), std::byte{1});
  const auto before = SharedMemory::borrowed_bytes();
  test::ForkedChild child([&] {
    const auto own = SharedMemory::create(kBytes);
    std::ranges::fill(own.bytes().subspan(SharedMemory::kReserved), std::byte{2});
    const auto inherited = SharedMemory::borrowed_bytes();
    const auto opened = SharedMemory::open(made.address(), kBytes);
    std::ranges::fill(opened.bytes().subspan(SharedMemory::kReserved), std::byte{3});
    return SharedMemory::borrowed_bytes() == inherited + kBytes ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(SharedMemory::borrowed_bytes(), before) << "its own is not";
}
#endif

TEST(SharedMemoryTest, MemoryOutlivesItsMaker) {
  auto made = SharedMemory::create(kBytes);
  const auto opened = SharedMemory::open(made.address(), kBytes);
  made.bytes()[100] = std::byte{5};
  made = SharedMemory();
  EXPECT_EQ(opened.bytes()[100], std::byte{5});
}

TEST(SharedMemoryTest, AWrongNonceSizeOrPlaceIsRefused) {
  const auto made = SharedMemory::create(kBytes);
  const auto refused = [](const SegmentAddress& address, std::size_t bytes) {
    try {
      SharedMemory::open(address, bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::Unsupported;
    }
    return false;
  };
  auto other_nonce = made.address();
  other_nonce.nonce[3] ^= std::byte{1};
  EXPECT_TRUE(refused(other_nonce, kBytes));
  EXPECT_TRUE(refused(made.address(), 2 * kBytes));
  auto nowhere = made.address();
  nowhere.process = 0x7ffffff0;
  nowhere.name = "/bimetal-nobody-has-made-it";
  EXPECT_TRUE(refused(nowhere, kBytes));
  // The file may be anything: a pipe must not make its opener wait.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  auto pipe_end = made.address();
  pipe_end.handle = static_cast<std::uint64_t>(ends[0]);
  pipe_end.name = "/bimetal-pipe";
  EXPECT_TRUE(refused(pipe_end, kBytes));
  close(ends[0]);
  close(ends[1]);
}

TEST(SharedMemoryTest, NothingIsFoundOrLeftAfterForgetting) {
  const auto files = open_files();
  const auto names = names_in_dev_shm();
  {
    auto made = SharedMemory::create(kBytes);
    const auto opened = SharedMemory::open(made.address(), kBytes);
    made.forget_name();
    EXPECT_THROW(SharedMemory::open(made.address(), kBytes), Error);
    EXPECT_EQ(names_in_dev_shm(), names);
    made.bytes()[100] = std::byte{5};
    EXPECT_EQ(opened.bytes()[100], std::byte{5});
  }
  EXPECT_EQ(open_files(), files);
}

TEST(SharedMemoryTest, AKilledMakerLeavesNothing) {
  const auto names = names_in_dev_shm();
  test::ForkedChild child([] {
    auto made = SharedMemory::create(kBytes);
#ifndef __linux__
    made.forget_name();  // before that, the name is all there is
#endif
    raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(child.wait(), -1);
  EXPECT_EQ(names_in_dev_shm(), names);
}

Bell bell_of(const SharedMemory& memory) {
  auto* const word = memory.bytes().data() + SharedMemory::kReserved;
  return {*reinterpret_cast<BellWord*>(word), memory.address()};
}

TEST(SharedMemoryTest, ABellWakesASleeperOfAnotherMapping) {
  const auto made = SharedMemory::create(kBytes);
  const auto opened = SharedMemory::open(made.address(), kBytes);
  std::atomic<bool> woken = false;
  std::thread sleeper([&] {
    Bell bell = bell_of(made);
    while (bell.seen() == 0) bell.sleep(0, std::chrono::minutes(1));
    woken = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(woken);
  bell_of(opened).ring();
  sleeper.join();
  EXPECT_TRUE(woken);
}

TEST(SharedMemoryTest, ASleepEndsAtItsTime) {
  const auto made = SharedMemory::create(kBytes);
  Bell bell = bell_of(made);
  bell.sleep(0, std::chrono::milliseconds(5));
  bell.sleep(1, std::chrono::minutes(1));  // not what it holds: no sleep at all
}

}  // namespace
}  // namespace bimetal::net
