#include "bimetal/device/host.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/api/include/torch/types.h>
#include <unistd.h>

#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"

namespace bimetal::device {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

torch::Tensor tensor_of(std::int64_t bytes) {
  return torch::ones({bytes}, torch::kUInt8);
}

TEST(Host, SaysSomethingSane) {
  EXPECT_FALSE(cpu_name().empty());
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.total_bytes, 64 * kMiB);
  EXPECT_GT(memory.free_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

#ifdef __linux__

// The limit stays with the process, so each case runs in a child of its own (a "death test",
// started anew so that nothing that another case has allocated counts). Status 0: as the case wants
// it.

class MemoryLimitDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void limit_memory(std::uint64_t bytes) {
  job::WorkerSpec spec = job::parse_worker_spec("cpu:threads=1");
  spec.memory_bytes = bytes;
  apply_worker_limits(spec, 1);
}

int allocate_under_limit(std::uint64_t limit, std::uint64_t fits, std::uint64_t too_much) {
  limit_memory(limit);
  try {
    tensor_of(fits);
  } catch (const std::exception&) {
    return 1;
  }
  try {
    tensor_of(too_much);
  } catch (const std::exception&) {
    return tensor_of(fits).defined() ? 0 : 3;  // the process goes on
  }
  return 2;
}

TEST_F(MemoryLimitDeathTest, AnAllocationBeyondItFailsAndOneWithinSucceeds) {
  EXPECT_EXIT(_exit(allocate_under_limit(128 * kMiB, 96 * kMiB, 160 * kMiB)),
              testing::ExitedWithCode(0), "");
}

TEST_F(MemoryLimitDeathTest, TheSumOfWhatIsHeldCounts) {
  EXPECT_EXIT(
      {
        limit_memory(128 * kMiB);
        std::vector<torch::Tensor> held;
        try {
          for (int i = 0; i < 16; ++i) held.push_back(tensor_of(16 * kMiB));
        } catch (const std::exception&) {
        }
        _exit(held.size() >= 6 && held.size() <= 8 ? 0 : static_cast<int>(held.size()) + 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(MemoryLimitDeathTest, ThreadsTakeLittleOfIt) {
  EXPECT_EXIT(
      {
        limit_memory(24 * kMiB);
        std::vector<std::future<void>> threads;
        std::promise<void> end;
        const auto ended = end.get_future().share();
        for (int i = 0; i < 8; ++i) {
          threads.push_back(std::async(std::launch::async, [ended] { ended.wait(); }));
        }
        end.set_value();
        threads.clear();
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(MemoryLimitDeathTest, WhatWasInUseBeforeDoesNotCount) {
  EXPECT_EXIT(
      {
        const auto before = tensor_of(256 * kMiB);
        _exit(allocate_under_limit(128 * kMiB, 96 * kMiB, 160 * kMiB));
      },
      testing::ExitedWithCode(0), "");
}

#else

TEST(MemoryLimit, IsUnsupportedWhereTheKernelWouldNotKeepIt) {
  EXPECT_THROW(limit_process_memory(1 << 30), Error);
}

#endif

}  // namespace
}  // namespace bimetal::device
