#pragma once
// Where the program bimetal_lite enters the shared library of the C interface, in which all of it
// lies: in wheels both stand on the same core, so that it is there only once. No part of that
// interface: nobody else calls it, and it is only in libraries with such a program beside them.

#include <string>
#include <vector>

#include "bimetal/capi/bimetal_c.h"

/// What main() was called with; on Windows, where that is no UTF-8, the process is asked instead.
/// Gives the exit status. Once in a process, whose signals it uses as it likes.
extern "C" BIMETAL_C int bimetal_lite_main(int count, char** words);

namespace bimetal::cli {

/// What it runs: what of the command line needs no libtorch.
/// `words` in UTF-8, the first of them the program's name. Gives the exit status; throws nothing.
/// Once in a process, whose signals and standard output it uses as it likes.
int run_lite(std::vector<std::string> words);

}  // namespace bimetal::cli
