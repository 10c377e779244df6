#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/device/cgroup.h"
#include "bimetal/device/host.h"

namespace bimetal::device {
namespace {

// The text behind "key:" in a file of such lines; empty if there is none.
std::string field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

// Lines such as "MemTotal:  16384 kB".
std::uint64_t field_bytes(const char* path, const std::string& key) {
  const std::string text = field(path, key);
  return text.empty() ? 0 : std::strtoull(text.c_str(), nullptr, 10) * 1024;
}

// The bytes left of limit_process_memory's limit.
std::uint64_t left_of_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return limit.rlim_cur -
         std::min<std::uint64_t>(limit.rlim_cur, field_bytes("/proc/self/status", "VmData"));
}

/// Sets the stack size of threads that begin from now on. The usual 8 MiB count as a whole, touched
/// or not, and the C library keeps the stacks of threads that have ended. This is still more than
/// macOS gives a thread.
void make_stacks_small() {
#ifdef __GLIBC__
  constexpr std::size_t kStackBytes = 1 << 20;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  std::size_t now = 0;
  pthread_attr_getstacksize(&attributes, &now);
  if (now > kStackBytes && pthread_attr_setstacksize(&attributes, kStackBytes) == 0) {
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
#endif
}

int cores_of_affinity() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails on machines with more cores than the mask has bits; then all of them count.
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return CPU_COUNT(&mask);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

std::string cpu_name() {
  // x86 and POWER, then the ARM boards that name the machine instead of the core.
  for (const char* key : {"model name", "cpu\t", "Model", "Hardware"}) {
    if (std::string name = field("/proc/cpuinfo", key); !name.empty()) return name;
  }
  return "CPU";
}

int usable_cores() {
  int cores = cores_of_affinity();
  if (const auto quota = read_cgroup_limits().cpus) {
    cores = std::min(cores, static_cast<int>(std::ceil(*quota)));
  }
  return std::max(cores, 1);
}

HostMemory host_memory() {
  HostMemory memory{field_bytes("/proc/meminfo", "MemTotal"),
                    field_bytes("/proc/meminfo", "MemAvailable")};
  const CgroupLimits limits = read_cgroup_limits();
  if (limits.memory_bytes) {
    memory.total_bytes = std::min(memory.total_bytes, *limits.memory_bytes);
    memory.free_bytes =
        std::min(memory.free_bytes,
                 *limits.memory_bytes - std::min(*limits.memory_bytes, limits.memory_used_bytes));
    memory.shared_by = limits.memory_folder.string();
  }
  memory.shared_free_bytes = memory.free_bytes;
  memory.free_bytes = std::min(memory.free_bytes, left_of_limit());
  return memory;
}

ProcessMemory process_memory() {
  return {field_bytes("/proc/self/status", "VmRSS"), field_bytes("/proc/self/status", "VmHWM")};
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

void limit_process_memory(std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) != 0) throw system_error("reading the memory limit", errno);
  const std::uint64_t in_use = field_bytes("/proc/self/status", "VmData");
  const rlim_t wanted = in_use + bytes;
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur <= wanted) return;
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw system_error("limiting the memory", errno);
  make_stacks_small();
}

}  // namespace bimetal::device
