#include <algorithm>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/device/host.h"

namespace bimetal::device {

std::string cpu_name() {
  return "CPU";
}

int usable_cores() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

HostMemory host_memory() {
  return {};
}

ProcessMemory process_memory() {
  return {};
}

std::string boot_id() {
  return "";
}

void limit_process_memory(std::uint64_t /*bytes*/) {
  throw Error(ErrorCode::Unsupported, "memory= needs Linux; leave it out on this operating system");
}

}  // namespace bimetal::device
