#pragma once
// Starting a process that the system ends with the one that started it (POSIX).

#include <sys/types.h>

#include <utility>
#include <vector>

namespace bimetal::launch {

/// Starts a program in a process group of its own with empty standard input, default signals and
/// these {number in the child, number here} descriptors. On Linux it is killed when the calling
/// thread ends, however that happens; elsewhere the system has no such thing, and whoever starts it
/// must see to its end. Returns 0 and sets `pid`, or returns the system's error number.
int spawn_bound(pid_t& pid, char* const* arguments, char* const* environment,
                const std::vector<std::pair<int, int>>& descriptors);

}  // namespace bimetal::launch
