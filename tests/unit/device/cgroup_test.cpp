#include "bimetal/device/cgroup.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace bimetal::device {
namespace {

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
