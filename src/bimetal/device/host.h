#pragma once
// The operating system's facts about this machine's processors and memory. One source file for each
// system (host_linux.cpp, host_macos.cpp, host_other.cpp), chosen by CMake; no libtorch.

#include <cstdint>
#include <string>

namespace bimetal::device {

/// The processor's name, e.g. "AMD EPYC 7B13" or "Apple M3"; "CPU" where it can't be had.
std::string cpu_name();

/// Cores that this process may use: the machine's, less those that its affinity mask excludes,
/// and no more than its container's CPU quota (rounded up). At least 1.
int usable_cores();

struct HostMemory {
  std::uint64_t total_bytes = 0;  ///< the machine's or, if smaller, the container's limit
  /// The bytes that this process can allocate without swapping, within that limit and
  /// limit_process_memory's.
  std::uint64_t free_bytes = 0;
  std::uint64_t shared_free_bytes = 0;  ///< the same for all processes there together
  /// The processes meant by "together": those of the container of that name, or all of the machine
  /// if empty.
  std::string shared_by = {};
};

/// Zeros where it can't be had.
HostMemory host_memory();

struct ProcessMemory {
  std::uint64_t resident_bytes = 0;  ///< of this process, now
  std::uint64_t peak_bytes = 0;      ///< the most since it began
};

/// Zeros where it can't be had.
ProcessMemory process_memory();

/// Differs between machines, and between two starts of one; containers of a machine share it. Empty
/// where it can't be had.
std::string boot_id();

/// Limits how much this process may allocate from now on: memory in use now is not counted.
///
/// Linux: RLIMIT_DATA is set to the present size of the private writable mappings plus `bytes`.
/// From then on everything that is mapped to be written counts (tensors, and stacks of new threads,
/// which then have 1 MiB), touched or not. Memory that malloc keeps for reuse is inside the present
/// size. An allocation beyond it fails (std::bad_alloc, c10::Error): the process is not killed. The
/// limit can be lowered again but not raised.
///
/// Error(Unsupported) on systems whose kernels do not enforce such a limit (macOS, Windows).
void limit_process_memory(std::uint64_t bytes);

}  // namespace bimetal::device
