#pragma once
// Subcommands that are written in Python, since what they drive is: bimetal ray,
// tune, ensemble.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_python_commands(CLI::App& app, Action& action);

}  // namespace bimetal::cli
