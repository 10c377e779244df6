#pragma once
// bimetal evaluate: what trained models are worth on the test set, each and all together.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_evaluate(CLI::App& app, Action& action);

}  // namespace bimetal::cli
