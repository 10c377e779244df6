#include <cstdio>
#include <cstdlib>

#include "bimetal/cli/program.h"

int main(int argc, char** argv) {
  const int status = bimetal::cli::run_program(argc, argv);
  // Without the destructors of libtorch's thousands of operators, which take a third of what the
  // start of a process and its end take together.
  std::fflush(nullptr);
  std::_Exit(status);
}
