#pragma once
// What is written in Python, since what it drives is: the subcommands bimetal data, ray, tune and
// ensemble, and answers that this program needs.

#include <string>

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_python_commands(CLI::App& app, Action& action);

/// What `python -m MODULE` answers to `question`: it reads that from its standard input, and its
/// last line is the answer. Error(System) if it cannot be run or ends with another status than 0,
/// with its last line.
std::string ask_python(const std::string& module, const std::string& question);

}  // namespace bimetal::cli
