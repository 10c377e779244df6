#pragma once
// bimetal bench: what the fabric does between this job's ranks, operation by operation.

#include "bimetal/cli/command.h"
#include "bimetal/fabric_bench/run_bench.h"

namespace bimetal::cli {

/// `join`: how this program's ranks find each other.
void add_bench(CLI::App& app, Action& action, fabric_bench::Join join);

}  // namespace bimetal::cli
