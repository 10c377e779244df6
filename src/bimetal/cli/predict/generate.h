#pragma once
// bimetal generate: text from a language model.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_generate(CLI::App& app, Action& action);

}  // namespace bimetal::cli
