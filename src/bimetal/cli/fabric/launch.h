#pragma once
// bimetal launch: any command as the ranks of a job, here, on other hosts by ssh, or as a task that
// Slurm or mpirun has started.

#include <string>
#include <vector>

#include "bimetal/cli/command.h"

namespace bimetal::cli {

/// Adds `launch`, and the hidden subcommands by which it runs itself on each host.
void add_launch(CLI::App& app, Action& action);

/// Of words that are for `launch`: with a "--" before its command, whose options are its own.
std::vector<std::string> with_command_apart(const CLI::App& app, std::vector<std::string> words);

}  // namespace bimetal::cli
