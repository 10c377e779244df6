#pragma once
// What this process has cost its processors.

#include <functional>

#include "bimetal/fabric_bench/report.h"

namespace bimetal::fabric_bench {

/// Seconds so far, user and system, of all threads.
double processor_seconds();

// Ranks of the benchmark as processes of this machine, as each system has them.

/// Starts options.ranks processes of this program, and returns when the last has ended. The exit
/// status; throws Error where one fails: with the cause, as it told (POSIX), or Aborted.
int start_ranks(const BenchOptions& options, const BenchProgram& program);

/// Does what a rank does, and gives its exit status: the launcher's end is its own (on Windows by
/// the launcher's job object), and it hears of errors, or they are thrown where none listens.
int be_rank(const BenchProgram& program, const std::function<void()>& work);

}  // namespace bimetal::fabric_bench
