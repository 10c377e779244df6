#pragma once
// bimetal demo: what balancing is worth, shown on this machine with two workers of unlike speed.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_demo(CLI::App& app, Action& action);

}  // namespace bimetal::cli
