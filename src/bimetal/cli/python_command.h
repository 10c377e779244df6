#pragma once
// Other programs that this one becomes, or asks: the whole of itself, with libtorch; and what is
// written in Python, since what it drives is: the subcommands bimetal data, doctor, ray, tune and
// ensemble, other programs' checkpoints, and answers that this program needs.

#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/cli/program.h"
#include "bimetal/job/job_config.h"

namespace bimetal::cli {

/// What this process is, and the program's arguments, without its name, for those below. Before
/// them.
void remember_process(Process process, std::vector<std::string> arguments);

/// What `bimetal rank` is to be asked of: the program that has libtorch.
std::filesystem::path program_of_ranks();

/// Becomes that one, with the same arguments; Error(System) if it cannot be run. To be called
/// before anything is begun that does not outlive that.
int become_whole_program();

/// Where the job's task is written in Python and this process has none: becomes the same program
/// inside of a Python process (`python -m bimetal.program`), with the same arguments. To be called
/// before anything is begun that does not outlive that; there it does nothing.
/// Error(System) if Python cannot be run.
void enter_python_for(const job::JobConfig& job);

void add_python_commands(CLI::App& app, Action& action);

/// Gives these commands the options that Python knows of, for completion and manual pages: parsing
/// leaves them to Python. Takes the time that Python needs to start. If Python cannot start, a note
/// says so.
void describe_python_commands(CLI::App& app);

/// Becomes `python -m MODULE ARGUMENTS`; Error(System) if that cannot be run.
int become_python(const std::string& module, const std::vector<std::string>& arguments);

/// The answer of `python -m MODULE` to `question`. The module reads the question from its standard
/// input, and its last line is the answer. Error(System) if it cannot be run or ends with another
/// status than 0, with its last line.
std::string ask_python(const std::string& module, const std::string& question);

}  // namespace bimetal::cli
