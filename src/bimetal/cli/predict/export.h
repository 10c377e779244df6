#pragma once
// bimetal export: a checkpoint's weights for other programs.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_export(CLI::App& app, Action& action);

}  // namespace bimetal::cli
