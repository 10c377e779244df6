#pragma once
// bimetal predict: what a served model, or a job that is being trained, says about images.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_predict(CLI::App& app, Action& action);

}  // namespace bimetal::cli
