#pragma once
// bimetal serve: a checkpoint, and what comes after it, answers those who ask.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_serve(CLI::App& app, Action& action);

}  // namespace bimetal::cli
