#pragma once
// The program bimetal_lite: what of the command line needs no libtorch. It lies in wheels, whose
// command `bimetal` hands on to it.

#include <string>
#include <vector>

namespace bimetal::cli {

/// `words` in UTF-8, the first of them the program's name. Gives the exit status; throws nothing.
/// Once in a process, whose signals and standard output it uses as it likes.
int run_lite(std::vector<std::string> words);

}  // namespace bimetal::cli
