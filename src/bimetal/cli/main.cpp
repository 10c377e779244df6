#include "bimetal/cli/program.h"

int main(int argc, char** argv) {
  return bimetal::cli::run_program(argc, argv, bimetal::cli::Process::has_torch);
}
