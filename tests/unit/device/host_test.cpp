#include "bimetal/device/host.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/csrc/api/include/torch/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/device/cgroup.h"
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

namespace fs = std::filesystem;

// A folder that stands for "/", with the files of /proc and /sys that the test writes.
class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / "cgroup-XXXXXX";
    std::string name = root_.string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void mount_v2(const std::string& group, const std::string& shown = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "22 1 0:21 / /proc rw,nosuid - proc proc rw\n31 22 0:26 " + shown +
                                     " /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n");
  }

  fs::path root_;
};

TEST_F(CgroupTest, NoFilesMeanNoLimits) {
  const CgroupLimits limits = read_cgroup_limits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST_F(CgroupTest, Version2) {
  mount_v2("/job");
  write("sys/fs/cgroup/job/cpu.max", "25000 100000\n");
  write("sys/fs/cgroup/job/memory.max", "1073741824\n");
  write("sys/fs/cgroup/job/memory.current", "500000000\n");
  write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 200000000\nslab 5\n");
  const CgroupLimits limits = read_cgroup_limits(root_);
  EXPECT_DOUBLE_EQ(limits.cpus.value(), 0.25);
  EXPECT_EQ(limits.memory_bytes, 1ull << 30);
  EXPECT_EQ(limits.memory_used_bytes, 300'000'000u);
}

TEST_F(CgroupTest, Version2WithoutLimit) {
  mount_v2("/job");
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/job/memory.max", "max\n");
  const CgroupLimits limits = read_cgroup_limits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST_F(CgroupTest, TheTightestAncestorWins) {
  mount_v2("/slice/job/step");
  write("sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/slice/job/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/slice/job/memory.max", "1000\n");
  write("sys/fs/cgroup/slice/job/step/memory.max", "4000\n");
  const CgroupLimits limits = read_cgroup_limits(root_);
  EXPECT_DOUBLE_EQ(limits.cpus.value(), 1.5);
  EXPECT_EQ(limits.memory_bytes, 1000u);
  EXPECT_EQ(limits.memory_folder, root_ / "sys/fs/cgroup/slice/job");
}

TEST_F(CgroupTest, AContainerSeesItsOwnGroupAsTheTop) {
  mount_v2("/docker/0123abc", "/docker/0123abc");
  write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(read_cgroup_limits(root_).cpus.value(), 2.0);
}

TEST_F(CgroupTest, Version1WithOneMountForEachController) {
  write("proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box/inner\n0::/\n");
  write("proc/self/mountinfo",
        "40 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
        "41 30 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/inner/cpu.cfs_quota_us", "80000\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/inner/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2048\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1024\n");
  write("sys/fs/cgroup/memory/box/memory.stat", "inactive_file 9\ntotal_inactive_file 24\n");
  const CgroupLimits limits = read_cgroup_limits(root_);
  EXPECT_DOUBLE_EQ(limits.cpus.value(), 0.8);
  EXPECT_EQ(limits.memory_bytes, 2048u);
  EXPECT_EQ(limits.memory_used_bytes, 1000u);
}

}  // namespace
}  // namespace bimetal::device
