#pragma once
// bimetal checkpoint: what checkpoints hold, and slices put together.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_checkpoint(CLI::App& app, Action& action);

}  // namespace bimetal::cli
