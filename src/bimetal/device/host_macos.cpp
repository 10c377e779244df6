#include <mach/mach.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/device/host.h"

namespace bimetal::device {

std::string cpu_name() {
  char name[256] = {};
  std::size_t size = sizeof(name) - 1;
  if (sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) != 0) return "CPU";
  return name;
}

int usable_cores() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

HostMemory host_memory() {
  HostMemory memory;
  std::size_t size = sizeof(memory.total_bytes);
  if (sysctlbyname("hw.memsize", &memory.total_bytes, &size, nullptr, 0) != 0) return {};

  vm_statistics64_data_t pages{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const kern_return_t result = host_statistics64(mach_host_self(), HOST_VM_INFO64,
                                                 reinterpret_cast<host_info64_t>(&pages), &count);
  if (result == KERN_SUCCESS) {
    // Inactive and purgeable pages are given up before anything is swapped.
    memory.free_bytes =
        (std::uint64_t{pages.free_count} + pages.inactive_count + pages.purgeable_count) *
        static_cast<std::uint64_t>(getpagesize());
    memory.shared_free_bytes = memory.free_bytes;
  }
  return memory;
}

ProcessMemory process_memory() {
  mach_task_basic_info_data_t info{};
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  const kern_return_t result = task_info(mach_task_self(), MACH_TASK_BASIC_INFO,
                                         reinterpret_cast<task_info_t>(&info), &count);
  if (result != KERN_SUCCESS) return {};
  return {info.resident_size, info.resident_size_max};
}

std::string boot_id() {
  char id[64] = {};
  std::size_t size = sizeof(id) - 1;
  if (sysctlbyname("kern.bootsessionuuid", id, &size, nullptr, 0) != 0) return "";
  return id;
}

void limit_process_memory(std::uint64_t /*bytes*/) {
  throw Error(ErrorCode::Unsupported,
              "memory= needs Linux: the kernel of macOS does not enforce a limit on what a process "
              "allocates; leave memory= out on this machine");
}

}  // namespace bimetal::device
