#include "bimetal/device/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace bimetal::device {
namespace {

namespace fs = std::filesystem;

// One mounted hierarchy that this process is in.
struct Hierarchy {
  bool unified = false;                  // version 2
  std::vector<std::string> controllers;  // version 1: the controlled resources
  fs::path mount;                        // where it is mounted
  fs::path group;                        // this process's group, relative to `mount`

  bool controls(const std::string& name) const {
    return unified || std::ranges::find(controllers, name) != controllers.end();
  }
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// /proc/self/cgroup has lines "id:controllers:path"; version 2 has no controllers.
std::optional<std::string> group_of(const fs::path& root, const Hierarchy& hierarchy) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool same = hierarchy.unified ? controllers.empty()
                                        : std::ranges::any_of(controllers, [&](const auto& name) {
                                            return hierarchy.controls(name);
                                          });
    if (same) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The mount shows the subtree below `shown`; a container often sees its own group as the top.
fs::path relative_group(const fs::path& group, const fs::path& shown) {
  const fs::path relative = group.lexically_relative(shown);
  return relative.empty() || *relative.begin() == ".." ? fs::path(".") : relative;
}

// /proc/self/mountinfo: "id parent device root mountpoint options [optional…] - type source super".
std::vector<Hierarchy> hierarchies(const fs::path& root) {
  std::vector<Hierarchy> result;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto words = split(line, ' ');
    const auto dash = std::ranges::find(words, "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    Hierarchy hierarchy;
    hierarchy.unified = dash[1] == "cgroup2";
    if (!hierarchy.unified && dash[1] != "cgroup") continue;
    hierarchy.controllers = split(dash[3], ',');
    hierarchy.mount = root / fs::path(words[4]).relative_path();
    const auto group = group_of(root, hierarchy);
    if (!group) continue;
    hierarchy.group = relative_group(*group, words[3]);
    result.push_back(hierarchy);
  }
  return result;
}

// The group's folder and its ancestors' up to the mount.
std::vector<fs::path> folders(const Hierarchy& hierarchy) {
  std::vector<fs::path> result = {hierarchy.mount};
  for (const fs::path& part : hierarchy.group) {
    if (part != ".") result.push_back(result.back() / part);
  }
  return result;
}

// Whitespace-separated words of a small file; "max" and "-1" (no limit) come back as nullopt.
std::vector<std::optional<double>> numbers(const fs::path& path) {
  std::vector<std::optional<double>> result;
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    double value = -1;
    std::istringstream(word) >> value;
    result.push_back(value >= 0 && word != "max" ? std::optional(value) : std::nullopt);
  }
  return result;
}

std::optional<double> number(const fs::path& path) {
  const auto values = numbers(path);
  return values.empty() ? std::nullopt : values.front();
}

// The value behind `key` in a file of lines "key value".
std::uint64_t keyed(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  for (std::uint64_t value = 0; file >> word >> value;) {
    if (word == key) return value;
  }
  return 0;
}

void read_cpu(const fs::path& folder, bool unified, CgroupLimits& limits) {
  std::optional<double> quota, period;
  if (unified) {
    const auto values = numbers(folder / "cpu.max");
    if (values.size() == 2) quota = values[0], period = values[1];
  } else {
    quota = number(folder / "cpu.cfs_quota_us");
    period = number(folder / "cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  limits.cpus = std::min(limits.cpus.value_or(*quota / *period), *quota / *period);
}

void read_memory(const fs::path& folder, bool unified, CgroupLimits& limits) {
  const auto limit = number(folder / (unified ? "memory.max" : "memory.limit_in_bytes"));
  // Version 1 writes "no limit" as the largest multiple of a page below 2⁶³.
  constexpr double kUnlimited = 9e18;
  if (!limit || *limit >= kUnlimited) return;
  const auto bytes = static_cast<std::uint64_t>(*limit);
  if (limits.memory_bytes && *limits.memory_bytes <= bytes) return;
  limits.memory_bytes = bytes;
  limits.memory_folder = folder;
  const auto used = static_cast<std::uint64_t>(
      number(folder / (unified ? "memory.current" : "memory.usage_in_bytes")).value_or(0));
  const auto cache =
      keyed(folder / "memory.stat", unified ? "inactive_file" : "total_inactive_file");
  limits.memory_used_bytes = used - std::min(used, cache);
}

}  // namespace

CgroupLimits read_cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    for (const fs::path& folder : folders(hierarchy)) {
      if (hierarchy.controls("cpu")) read_cpu(folder, hierarchy.unified, limits);
      if (hierarchy.controls("memory")) read_memory(folder, hierarchy.unified, limits);
    }
  }
  return limits;
}

}  // namespace bimetal::device
