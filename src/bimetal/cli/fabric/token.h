#pragma once
// bimetal token: makes the shared secret of a job on several machines.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_token(CLI::App& app, Action& action);

}  // namespace bimetal::cli
