#pragma once
// The program bimetal_launch: `launch` of the command line, and nothing that needs libtorch. It
// lies in wheels, whose command `bimetal` hands on to it.

#include <string>
#include <vector>

namespace bimetal::cli {

/// `words` in UTF-8, the first of them the program's name. Gives the exit status; throws nothing.
int run_launcher(std::vector<std::string> words);

}  // namespace bimetal::cli
