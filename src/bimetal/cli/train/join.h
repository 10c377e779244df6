#pragma once
// bimetal join: this machine's workers become part of a job that another machine has started with
// `bimetal train --listen`.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_join(CLI::App& app, Action& action);

}  // namespace bimetal::cli
