#pragma once
// The entry point of the program bimetal_lite into the shared library of the C interface, which has
// all of its code: wheels thus have the core only once. It is no part of that interface: nobody
// else calls it, and only libraries with such a program beside them have it.

#include <string>
#include <vector>

#include "bimetal/capi/bimetal_c.h"

/// Takes the arguments of main(). On Windows, where they are not UTF-8, it asks the process
/// instead. Returns the exit status. Once in a process, whose signals it uses as it likes.
extern "C" BIMETAL_C int bimetal_lite_main(int count, char** words);

namespace bimetal::cli {

/// Runs the part of the command line that needs no libtorch. `words` in UTF-8, the first of them
/// the program's name. Returns the exit status; throws nothing. Once in a process, whose signals
/// and standard output it uses as it likes.
int run_lite(std::vector<std::string> words);

}  // namespace bimetal::cli
