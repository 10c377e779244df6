#pragma once
// The command line program as a function: parses, runs one subcommand, and maps errors to exit
// statuses.
//
// There are two programs of it. `bimetal` has what starts ranks, watches them and the like, and no
// libtorch, which takes a quarter of a second to load. For every other command it becomes
// `bimetal-torch` beside it, which has all.

namespace bimetal::cli {

/// What there is in a process that runs the program.
enum class Process {
  starts_others,  ///< no libtorch
  has_torch,
  is_pythons,  ///< libtorch, and Python, which has called
};

/// As main() has them: argv[0] is the program's name. Gives the exit status; throws nothing. Once
/// in a process, whose signals and standard output it uses as it likes.
int run_program(int argc, char** argv, Process process);

}  // namespace bimetal::cli
