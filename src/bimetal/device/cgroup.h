#pragma once
// The limits that Linux control groups (containers, systemd, Slurm) put on this process, for
// hierarchies of version 1, version 2 and both side by side. Text files alone: no system calls of
// its own, so it compiles and is tested everywhere.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace bimetal::device {

struct CgroupLimits {
  std::optional<double> cpus;                 ///< CPU seconds per second, e.g. 0.25 or 2
  std::optional<std::uint64_t> memory_bytes;  ///< the tightest limit
  std::uint64_t memory_used_bytes =
      0;  ///< under that limit, without file cache that can be dropped
  std::filesystem::path memory_folder;  ///< of the group that has it
};

/// Limits of the process whose /proc/self lies under `root`, those of its group's ancestors
/// counted: the tightest wins. Missing or unreadable files mean no limit. `root` is "/" but in
/// tests.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace bimetal::device
