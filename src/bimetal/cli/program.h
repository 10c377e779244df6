#pragma once
// The command line program as a function: parses, runs one subcommand, and maps errors to exit
// statuses.

namespace bimetal::cli {

/// As main() has them: argv[0] is the program's name. Gives the exit status; throws nothing. Once
/// in a process, whose signals and standard output it uses as it likes.
int run_program(int argc, char** argv);

}  // namespace bimetal::cli
