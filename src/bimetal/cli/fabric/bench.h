#pragma once
// bimetal bench: what the fabric does between this job's ranks, operation by operation.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_bench(CLI::App& app, Action& action);

}  // namespace bimetal::cli
