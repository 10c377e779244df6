#pragma once
// What this process has cost its processors.

namespace bimetal::fabric_bench {

/// Seconds so far, user and system, of all threads.
double processor_seconds();

}  // namespace bimetal::fabric_bench
